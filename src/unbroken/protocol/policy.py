"""The one interface of policies: what the kernel asks of everything beyond active replication with pulses.

A policy is a strategy, an ordering, a reconciliation or a guarantee. The kernel calls every hook of every policy that
has it, and knows none of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from unbroken.protocol.events import FetchFailed, GateAsked, Produced, QueryFailed, StateArrived, UnitArrived
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.messages import Claimed, Subscribe, Unsubscribe
from unbroken.protocol.plausibility import Plausibility
from unbroken.protocol.repair.catchup import CatchUp
from unbroken.protocol.replica.cuts import Ordering
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import Consistency, DelayBound, Outlook
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.turns import Verdict
from unbroken.protocol.values.units import UnitHeader

Steps = list[Instruction]
EventHandler = Callable[[Any, float], Steps]
MessageHandler = Callable[[NodeId, Any, float], Steps]
MessageCheck = Callable[[NodeId, Any], None]


class Policy:
    """A policy that does nothing: each one overrides the hooks that it needs.

    Hooks that answer with steps add to what the kernel does. Where a hook may answer None, that means that the event is
    not this policy's, and the first policy that takes it decides.
    """

    # --- what it handles itself -----------------------------------------------------------------------

    def events(self) -> Mapping[type[Any], EventHandler]:
        """The events that only this policy knows."""
        return {}

    def messages(self) -> Mapping[type[Any], MessageHandler]:
        """The messages that only this policy knows."""
        return {}

    def checks(self, names: Plausibility) -> Mapping[type[Any], MessageCheck]:
        """For each of these messages, what raises `Implausible` if no node would send it."""
        return {}

    def check(self) -> None:
        """Assert the invariants."""

    # --- replicas that come and go --------------------------------------------------------------------

    def takes_up(self, replica: ReplicaId, state: StoredReplica | None, now_ms: float) -> Steps | None:
        """The layout places a replica here that is not to work, and the process begins with this state of it."""
        return None

    def hosted(self, replica: ReplicaId) -> Steps:
        """A replica begins to work here; its outboxes are open."""
        return []

    def stored(self, replica: ReplicaId, headers: Iterable[UnitHeader]) -> None:
        """An earlier process has left these units of a replica that begins to work here."""

    def unhosted(self, replica: ReplicaId) -> None:
        """A replica does not work here any more."""

    def find(self, replica: ReplicaId) -> SegmentReplica | None:
        """What runs here under this name and is no replica of the layout."""
        return None

    def query_ended(self, event: QueryFailed, now_ms: float) -> Steps | None:
        """A query ended by itself, or cannot go on."""
        return None

    def layout_changed(self, placed: Collection[ReplicaId], now_ms: float) -> Steps:
        """There is a later layout, which places these replicas here."""
        return []

    # --- input ----------------------------------------------------------------------------------------

    def ordering(self, replica: ReplicaId, inboxes: Mapping[StreamId, Inbox]) -> Ordering | None:
        """What decides the cuts of a replica, if that is not the pulse."""
        return None

    def numbered(self, part: str) -> bool:
        """Whether the units of a part are numbered by the pulses that they complete."""
        return True

    def separate(self) -> bool:
        """Whether sources are cut each by itself, instead of all together."""
        return False

    def apart_ms(self) -> float:
        """The least time between two pulses while a segment that others have left behind catches up."""
        return 0.0

    def endured_ms(self) -> float:
        """How long the most impatient segment waits for missing input; 0 if all of them wait for ever."""
        return 0.0

    def patience(self, part: str) -> DelayBound | None:
        """How long a part that has to wait for missing input does so before it reports that."""
        return None

    def wants(self, replica: ReplicaId, stream: StreamId) -> int:
        """From which pulse on a replica wants input that is not stable; -1: not at all."""
        return -1

    def standing(self, replica: ReplicaId) -> Consistency | None:
        """How the results of a replica stand, as far as that is known."""
        return None

    def outlook(self, replica: ReplicaId) -> Outlook | None:
        """How the results of a replica here stand, if it is watched for missing input."""
        return None

    def held(self) -> Mapping[ReplicaId, int]:
        """The copies of state that are held here, with their versions."""
        return {}

    def feeders(self, nodes: Collection[NodeId]) -> Collection[NodeId] | None:
        """Those of these producers that replicas here take input from; None: all of them."""
        return None

    def keepers(self) -> Collection[NodeId]:
        """Nodes that have to keep input for a newcomer, whether they can be reached or not."""
        return ()

    def came(self, replica: SegmentReplica, header: UnitHeader, now_ms: float) -> Steps:
        """A unit has come to a replica and is being stored."""
        return []

    def check_unstable(self, header: UnitHeader, names: Plausibility) -> bool:
        """Raise `Implausible` if no node would send this unit, which is not stable; whether it is this policy's."""
        return False

    def unstable(self, event: UnitArrived, now_ms: float) -> Steps:
        """A unit has come that is not stable."""
        return []

    def committing(self, replica: SegmentReplica, event: GateAsked) -> Steps | None:
        """A replica has committed; what of its input is dropped."""
        return None

    def rests(self, part: str) -> bool:
        """Whether the query of a replica rests while results are made without its missing input."""
        return False

    def set_back(self, replica: SegmentReplica) -> Steps:
        """What has to be done before a query that has rested resumes."""
        return []

    def committed(self, replica: SegmentReplica) -> Steps:
        """A replica has committed, and producers have heard of it."""
        return []

    # --- output ---------------------------------------------------------------------------------------

    def processed(self, replica: SegmentReplica, event: Produced) -> None:
        """A replica has produced its next units."""

    def produced(self, event: Produced, now_ms: float) -> Steps:
        """Something that is no replica of the layout has produced units."""
        return []

    def levels(self, part: str) -> int:
        """The level of acknowledgement at which a part lets its producers drop units."""
        return 0

    def window(self, part: str) -> int:
        """Units that are sent to a part beyond its last acknowledgement, if that is more than usual."""
        return 0

    def rebuilds(self, part: str) -> bool:
        """Whether a part gets its state back from what its producers keep, and from nothing else."""
        return False

    def subscribed(self, sender: NodeId, message: Subscribe) -> Steps:
        return []

    def unsubscribed(self, message: Unsubscribe) -> None:
        """A subscription has ended."""

    def subscriber_gone(self, node: NodeId) -> None:
        """All subscriptions of a node have ended."""

    def verdict(self, stream: StreamId) -> Verdict | None:
        """What becomes of the next unit of a stream to a sink; None: the oldest replica delivers it first."""
        return None

    def backlog(self) -> int | None:
        """Units that may wait for a sink before the pulse is held, if that is fewer than usual."""
        return None

    def stamp(self) -> int:
        """The version of the layout that is agreed on with a pulse; 0 where it does not matter."""
        return 0

    def sink_took(self, stream: StreamId) -> bool:
        """A sink has a unit of a stream that is not one of the layout's."""
        return False

    # --- others ---------------------------------------------------------------------------------------

    def link_up(self, node: NodeId) -> Steps:
        return []

    def link_lost(self, node: NodeId) -> None:
        """Nothing is heard from a node any more."""

    def briefing(self, to: NodeId) -> Steps:
        """How things stand here, for a node that may have missed it."""
        return []

    def report(self, replica: ReplicaId, to: NodeId) -> Steps:
        """The same of one replica."""
        return []

    # --- newcomers ------------------------------------------------------------------------------------

    def joining(self, replica: ReplicaId) -> CatchUp | None:
        """The way of a replica that does not work yet, and whose producers have to promise."""
        return None

    def claimed(self, sender: NodeId, message: Claimed) -> bool:
        """A producer has promised; whether that was for this policy."""
        return False

    def begun(self, replica: ReplicaId) -> tuple[CatchUp | None, Steps]:
        """A replica is to work from here on: the way that it has come so far, if there is something to begin with."""
        return None, []

    def anew(self, join: CatchUp, now_ms: float) -> Steps | None:
        """A newcomer has to begin without anybody's state."""
        return None

    def known_start(self, shard: ShardId) -> tuple[int, Rebuilt] | None:
        """The input that a lost shard was done with, if that is known."""
        return None

    def done_with(self, replica: ReplicaId) -> tuple[int, Rebuilt] | None:
        """The input that a replica here needs no longer, and what one is worth that is rebuilt from the rest."""
        return None

    def state_arrived(self, event: StateArrived, now_ms: float) -> Steps | None:
        return None

    def fetch_failed(self, event: FetchFailed, now_ms: float) -> Steps | None:
        return None
