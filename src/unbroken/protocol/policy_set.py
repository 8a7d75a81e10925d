"""All policies of a node, asked as if they were one.

Where several policies answer, their answers are put together: steps one after the other, limits by the strictest of
them; where one has to decide, the first that does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from unbroken.protocol.events import FetchFailed, GateAsked, Produced, QueryFailed, StateArrived, UnitArrived
from unbroken.protocol.instructions import Instruction
from unbroken.protocol.messages import Claimed, Subscribe, Unsubscribe
from unbroken.protocol.plausibility import Implausible, Plausibility
from unbroken.protocol.policy import Policy, Steps
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

Kind = TypeVar("Kind", bound=Policy)


class Policies:
    """The policies of a node, asked in the order in which they are registered.

    Invariant: a hook costs nothing where no policy has it.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Policy] = {}
        self._having: dict[str, tuple[Policy, ...]] = {}

    def add(self, name: str, policy: Policy) -> None:
        self.by_name[name] = policy
        for hook in vars(Policy):
            if not hook.startswith("_"):
                found = [p for p in self.by_name.values() if getattr(type(p), hook) is not getattr(Policy, hook)]
                self._having[hook] = tuple(found)

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.by_name.values())

    def of(self, kind: type[Kind]) -> Kind:
        """The policy of this class."""
        return next(policy for policy in self.by_name.values() if isinstance(policy, kind))

    def _all(self, hook: str) -> tuple[Policy, ...]:
        return self._having.get(hook, ())

    def check(self) -> None:
        for policy in self._all("check"):
            policy.check()

    def takes_up(self, replica: ReplicaId, state: StoredReplica | None, now_ms: float) -> Steps | None:
        for policy in self._all("takes_up"):
            steps = policy.takes_up(replica, state, now_ms)
            if steps is not None:
                return steps
        return None

    def hosted(self, replica: ReplicaId) -> Steps:
        return [step for policy in self._all("hosted") for step in policy.hosted(replica)]

    def stored(self, replica: ReplicaId, headers: Iterable[UnitHeader]) -> None:
        for policy in self._all("stored"):
            policy.stored(replica, headers)

    def unhosted(self, replica: ReplicaId) -> None:
        for policy in self._all("unhosted"):
            policy.unhosted(replica)

    def find(self, replica: ReplicaId) -> SegmentReplica | None:
        for policy in self._all("find"):
            found = policy.find(replica)
            if found is not None:
                return found
        return None

    def query_ended(self, event: QueryFailed, now_ms: float) -> Steps | None:
        for policy in self._all("query_ended"):
            steps = policy.query_ended(event, now_ms)
            if steps is not None:
                return steps
        return None

    def layout_changed(self, placed: Collection[ReplicaId], now_ms: float) -> Steps:
        return [step for policy in self._all("layout_changed") for step in policy.layout_changed(placed, now_ms)]

    def ordering(self, replica: ReplicaId, inboxes: Mapping[StreamId, Inbox]) -> Ordering | None:
        for policy in self._all("ordering"):
            found = policy.ordering(replica, inboxes)
            if found is not None:
                return found
        return None

    def numbered(self, part: str) -> bool:
        return all(policy.numbered(part) for policy in self._all("numbered"))

    def separate(self) -> bool:
        return any(policy.separate() for policy in self._all("separate"))

    def apart_ms(self) -> float:
        return max((policy.apart_ms() for policy in self._all("apart_ms")), default=0.0)

    def endured_ms(self) -> float:
        found = [policy.endured_ms() for policy in self._all("endured_ms")]
        return min((endured for endured in found if endured), default=0.0)

    def patience(self, part: str) -> DelayBound | None:
        for policy in self._all("patience"):
            found = policy.patience(part)
            if found is not None:
                return found
        return None

    def wants(self, replica: ReplicaId, stream: StreamId) -> int:
        return max((policy.wants(replica, stream) for policy in self._all("wants")), default=-1)

    def standing(self, replica: ReplicaId) -> Consistency | None:
        for policy in self._all("standing"):
            found = policy.standing(replica)
            if found is not None:
                return found
        return None

    def outlook(self, replica: ReplicaId) -> Outlook | None:
        for policy in self._all("outlook"):
            found = policy.outlook(replica)
            if found is not None:
                return found
        return None

    def held(self) -> dict[ReplicaId, int]:
        return {replica: version for policy in self._all("held") for replica, version in policy.held().items()}

    def feeders(self, nodes: Collection[NodeId]) -> Collection[NodeId]:
        for policy in self._all("feeders"):
            fewer = policy.feeders(nodes)
            nodes = nodes if fewer is None else fewer
        return nodes

    def keepers(self) -> set[NodeId]:
        return {node for policy in self._all("keepers") for node in policy.keepers()}

    def came(self, replica: SegmentReplica, header: UnitHeader, now_ms: float) -> Steps:
        return [step for policy in self._all("came") for step in policy.came(replica, header, now_ms)]

    def check_unstable(self, header: UnitHeader, names: Plausibility) -> None:
        if not any(policy.check_unstable(header, names) for policy in self._all("check_unstable")):
            raise Implausible(f"unit {header.number} of {header.stream} is not stable")

    def unstable(self, event: UnitArrived, now_ms: float) -> Steps:
        return [step for policy in self._all("unstable") for step in policy.unstable(event, now_ms)]

    def committing(self, replica: SegmentReplica, event: GateAsked) -> Steps | None:
        for policy in self._all("committing"):
            steps = policy.committing(replica, event)
            if steps is not None:
                return steps
        return None

    def rests(self, part: str) -> bool:
        return any(policy.rests(part) for policy in self._all("rests"))

    def set_back(self, replica: SegmentReplica) -> Steps:
        return [step for policy in self._all("set_back") for step in policy.set_back(replica)]

    def committed(self, replica: SegmentReplica) -> Steps:
        return [step for policy in self._all("committed") for step in policy.committed(replica)]

    def processed(self, replica: SegmentReplica, event: Produced) -> None:
        for policy in self._all("processed"):
            policy.processed(replica, event)

    def produced(self, event: Produced, now_ms: float) -> Steps:
        return [step for policy in self._all("produced") for step in policy.produced(event, now_ms)]

    def levels(self, part: str) -> int:
        return max((policy.levels(part) for policy in self._all("levels")), default=0)

    def window(self, part: str) -> int:
        return max((policy.window(part) for policy in self._all("window")), default=0)

    def rebuilds(self, part: str) -> bool:
        return any(policy.rebuilds(part) for policy in self._all("rebuilds"))

    def subscribed(self, sender: NodeId, message: Subscribe) -> Steps:
        return [step for policy in self._all("subscribed") for step in policy.subscribed(sender, message)]

    def unsubscribed(self, message: Unsubscribe) -> None:
        for policy in self._all("unsubscribed"):
            policy.unsubscribed(message)

    def subscriber_gone(self, node: NodeId) -> None:
        for policy in self._all("subscriber_gone"):
            policy.subscriber_gone(node)

    def verdict(self, stream: StreamId) -> Verdict | None:
        for policy in self._all("verdict"):
            found = policy.verdict(stream)
            if found is not None:
                return found
        return None

    def backlog(self) -> int | None:
        found = [most for policy in self._all("backlog") if (most := policy.backlog()) is not None]
        return min(found, default=None)

    def stamp(self) -> int:
        return max((policy.stamp() for policy in self._all("stamp")), default=0)

    def sink_took(self, stream: StreamId) -> bool:
        return any(policy.sink_took(stream) for policy in self._all("sink_took"))

    def link_up(self, node: NodeId) -> Steps:
        return [step for policy in self._all("link_up") for step in policy.link_up(node)]

    def link_lost(self, node: NodeId) -> None:
        for policy in self._all("link_lost"):
            policy.link_lost(node)

    def briefing(self, to: NodeId) -> Steps:
        return [step for policy in self._all("briefing") for step in policy.briefing(to)]

    def report(self, replica: ReplicaId, to: NodeId) -> Steps:
        return [step for policy in self._all("report") for step in policy.report(replica, to)]

    def joining(self, replica: ReplicaId) -> CatchUp | None:
        for policy in self._all("joining"):
            found = policy.joining(replica)
            if found is not None:
                return found
        return None

    def claimed(self, sender: NodeId, message: Claimed) -> bool:
        return any(policy.claimed(sender, message) for policy in self._all("claimed"))

    def begun(self, replica: ReplicaId) -> tuple[CatchUp | None, Steps]:
        join, out = None, list[Instruction]()
        for policy in self._all("begun"):
            found, steps = policy.begun(replica)
            join, out = join or found, [*out, *steps]
        return join, out

    def anew(self, join: CatchUp, now_ms: float) -> Steps | None:
        for policy in self._all("anew"):
            steps = policy.anew(join, now_ms)
            if steps is not None:
                return steps
        return None

    def known_start(self, shard: ShardId) -> tuple[int, Rebuilt] | None:
        found = [known for policy in self._all("known_start") if (known := policy.known_start(shard)) is not None]
        return max(found, key=lambda known: known[0], default=None)

    def done_with(self, replica: ReplicaId) -> tuple[int, Rebuilt] | None:
        for policy in self._all("done_with"):
            found = policy.done_with(replica)
            if found is not None:
                return found
        return None

    def state_arrived(self, event: StateArrived, now_ms: float) -> Steps | None:
        for policy in self._all("state_arrived"):
            steps = policy.state_arrived(event, now_ms)
            if steps is not None:
                return steps
        return None

    def fetch_failed(self, event: FetchFailed, now_ms: float) -> Steps | None:
        for policy in self._all("fetch_failed"):
            steps = policy.fetch_failed(event, now_ms)
            if steps is not None:
                return steps
        return None
