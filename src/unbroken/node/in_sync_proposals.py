"""What a node proposes to ZooKeeper about the members of the ingress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Protocol

from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import InSyncProposed

HELD_BACK_S = 1.0
"""How long a node that is probably cut off lets the others decide about the ingress first. The two ends of a link miss
each other within a heartbeat and a look at the links, and a decision is one write to ZooKeeper."""


class Proposer(Protocol):
    """Where the in-sync set is kept."""

    def propose(self, step: ProposeInSync, replica: ReplicaId) -> None: ...


class InSyncProposals:
    """Passes proposals on, later if it is probably this node that is cut off (``cut_off`` of those it misses)."""

    def __init__(
        self,
        name: NodeId,
        tell: Callable[[Notice], None],
        cut_off: Callable[[Collection[NodeId]], bool],
        proposer: Proposer | None,
    ) -> None:
        self._name = name
        self._tell = tell
        self._cut_off = cut_off
        self._proposer = proposer

    def propose(self, step: ProposeInSync, sync: InSync, replica: ReplicaId | None) -> None:
        """Propose another set than ``sync`` for the ``replica`` of the ingress here."""
        members = step.proposal.members
        if members != sync.members:
            self._tell(InSyncProposed(self._name, tuple(sorted(members))))
        if self._proposer is None or replica is None:
            return
        missed = sync.members - members
        if missed and self._cut_off(missed):
            # The others have each other, and the pulses of a leader that none of them hears are of no use: they go
            # first. If they do not, this node does.
            held = threading.Timer(HELD_BACK_S, self._proposer.propose, (step, replica))
            held.daemon = True
            held.start()
        else:
            self._proposer.propose(step, replica)
