"""How long a node may be out of sight before it counts as lost, and who is suspected before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout

ABSENCE_S = 1.0
"""How long the controller must miss a node before it stops counting it. When all sessions end at once (the machine
slept) the others are back within half a second, and nothing waits for this decision."""


@dataclass
class Absence:
    """What a controller has seen of the nodes that are away; a successor finds it out again.

    ``return_grace_s`` is given to nodes that this one was never linked to: they are probably on their way, as when the
    whole flow is started again. That such a node had an entry proves nothing: what a killed process has left vanishes
    with its session. After that time nobody's return is believed in any more.
    """

    me: NodeId
    return_grace_s: float
    since: dict[NodeId, float] = field(default_factory=dict)

    def forget(self) -> None:
        self.since.clear()

    def present(
        self, layout: Layout, members: Mapping[NodeId, str], linked: Collection[NodeId], now_s: float
    ) -> dict[NodeId, str]:
        """The nodes that count as present, with their disks: those that are, this one, those not missed for long."""
        out = dict(members)
        missed = set(layout.nodes) - set(members) - {self.me}
        self.since = {node: self.since.get(node, now_s) for node in missed}
        for node, since in self.since.items():
            patience = ABSENCE_S if node in linked else self.return_grace_s
            if now_s - since < patience:
                out[node] = layout.nodes[node]
        if self.me in layout.nodes:
            out.setdefault(self.me, layout.nodes[self.me])
        return out

    def suspects(
        self,
        members: Mapping[NodeId, str],
        suspected: Mapping[NodeId, Collection[NodeId]],
        connected: Collection[NodeId],
    ) -> frozenset[NodeId]:
        """The members that ZooKeeper still has, although somebody else gets no answer and this one has no link either.

        ``suspected`` says who is suspected by whom, ``connected`` whom this one is linked to at this moment. What is
        said by nodes that are not there does not count.
        """
        there = {*members, self.me}
        doubts = {node: there & set(by) - {node} for node, by in suspected.items()}
        unseen = set(members) - {*connected, self.me}
        return frozenset(
            node
            for node in unseen & set(doubts)
            if any(self._believes(by, node, doubts, by in connected) for by in doubts[node])
        )

    def _believes(self, by: NodeId, suspect: NodeId, doubts: Mapping[NodeId, set[NodeId]], connected: bool) -> bool:
        """Whether what one node says about another counts, given who is doubted by whom.

        Of two that doubt each other the one with a link to the controller is right. The controller itself is, too,
        unless a third one doubts it: then it is probably the one that is cut off.
        """
        against = doubts.get(by, set())
        if by == self.me:
            return not against - {suspect}
        return connected or not against

    def given_up(self, now_s: float) -> frozenset[NodeId]:
        """Nodes that are not expected to return."""
        return frozenset(node for node, since in self.since.items() if now_s - since >= self.return_grace_s)


def out_of_office(
    line: Sequence[NodeId], me: NodeId, suspected: Collection[NodeId], connected: Collection[NodeId]
) -> list[NodeId]:
    """Of the candidates in ``line`` those before ``me`` that are to make room; none unless all of them are.

    Whoever stands first holds the office. One in line is passed over if somebody suspects it and ``me`` has no
    connection to it either.
    """
    before = list(line[: line.index(me)]) if me in line else []
    gone = all(node in suspected and node not in connected for node in before)
    return before if gone else []
