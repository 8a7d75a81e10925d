"""Who leads the replicas of a shard that are ordered by a leader, and what the leader orders."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.errors import require
from unbroken.protocol.instructions import Instruction, Report, StopReplica
from unbroken.protocol.policies.leader.cuts import LeaderCuts
from unbroken.protocol.policies.leader.instructions import FollowOrders, Lead, Publish
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused, OrdersLost
from unbroken.protocol.policy import EventHandler, Policy
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices.replicas import LeaderElected
from unbroken.protocol.values.units import UnitHeader

AHEAD = 2
"""Orders beyond what the leader's own query has committed: the one that runs and the one that follows it without a
pause. What comes meanwhile makes the next one larger."""


@dataclass
class ArrivalTimes:
    """When the newest units of a stream came, so that those are not ordered that others may not have yet."""

    settled: int
    coming: deque[tuple[int, float]] = field(default_factory=deque)

    def came(self, available: int, now_ms: float) -> None:
        if available > (self.coming[-1][0] if self.coming else self.settled):
            self.coming.append((available, now_ms))

    def settle(self, now_ms: float, after_ms: float) -> None:
        while self.coming and self.coming[0][1] + after_ms <= now_ms:
            self.settled = self.coming.popleft()[0]


@dataclass
class Led:
    """One replica here of a shard that is ordered by a leader, and what is known of its orders.

    ``read`` is the newest order that came from the log and ``given`` the newest one that this node has published; their
    cuts are where the next one begins. A leader goes on from ``resume``, the last order before its term, once it has
    read it.

    Invariants: orders are read without a gap; nothing is given while this node does not lead.
    """

    replica: SegmentReplica
    arrivals: dict[StreamId, ArrivalTimes]
    read: int
    read_cut: dict[StreamId, int]
    given: int = 0
    given_cut: dict[StreamId, int] = field(default_factory=dict)
    term: int = 0
    leader: NodeId | None = None
    leads: bool = False
    resume: int = 0
    heard_ms: float = 0.0
    asked_ms: float | None = None
    claim: int = 0
    waiting_ms: float | None = None

    @property
    def newest(self) -> int:
        return max(self.read, self.given)

    @property
    def cut(self) -> dict[StreamId, int]:
        return self.given_cut if self.given > self.read else self.read_cut

    @property
    def has_room(self) -> bool:
        """Whether the query here could soon take one more order than there is."""
        return self.newest < self.replica.committed + AHEAD

    def fresh(self) -> dict[StreamId, int]:
        """Input that is here, has settled, and that nobody has ordered."""
        last = self.cut
        settled = {stream: arrivals.settled for stream, arrivals in self.arrivals.items()}
        return {stream: unit for stream, unit in settled.items() if unit > last.get(stream, 0)}

    def take_back(self) -> None:
        """What was given and has not come back may never come."""
        self.leads, self.given, self.given_cut = False, 0, {}


@dataclass
class Leadership(Policy):
    """The part of a node in the orders of the shards that it has replicas of.

    A replica that has something to do which nobody orders takes the lead: at once if the leader is out of reach, after
    a while if it is only silent. Nobody has to be sure that the leader is dead, because the log takes orders of the
    newest term alone; and one that gives orders is left in peace, reachable or not.

    Invariant: an order is given only in a term that this node leads by what the log says, and after all before it.
    """

    around: Surroundings
    roster: Roster
    led: dict[ShardId, Led] = field(default_factory=dict)
    claims: int = 0

    # --- replicas that come and go --------------------------------------------------------------------

    def events(self) -> Mapping[type[Any], EventHandler]:
        return {
            Ordered: self.ordered,
            LeaderKnown: self.leader_known,
            OrderRefused: self.refused,
            OrdersLost: self.lost,
        }

    def ordering(self, replica: ReplicaId, inboxes: Mapping[StreamId, Inbox]) -> LeaderCuts | None:
        return None if self.numbered(replica.shard.part) else LeaderCuts(inboxes)

    def numbered(self, part: str) -> bool:
        return part not in self.around.topology.led

    def hosted(self, name: ReplicaId) -> list[Instruction]:
        replica = self.roster.replicas.get(name)
        if replica is None or self.numbered(name.shard.part):
            return []
        arrivals = {stream: ArrivalTimes(inbox.available) for stream, inbox in replica.inboxes.items()}
        taken = {stream: inbox.consumed for stream, inbox in replica.inboxes.items()}
        self.led[replica.replica.shard] = Led(replica, arrivals, replica.committed, taken)
        return [FollowOrders(replica.replica.shard, replica.committed)]

    def unhosted(self, replica: ReplicaId) -> None:
        led = self.led.get(replica.shard)
        if led is not None and led.replica.replica == replica:
            del self.led[replica.shard]

    # --- the log --------------------------------------------------------------------------------------

    def ordered(self, event: Ordered, now_ms: float) -> list[Instruction]:
        led = self.led.get(event.shard)
        if led is None:
            return []
        assert isinstance(led.replica.cuts, LeaderCuts)
        for order in event.orders:
            if order.number != led.read + 1:
                continue  # known already, or for a replica that was here before and had come further
            led.replica.cuts.orders[order.number] = order
            led.read = order.number
            led.read_cut = {**led.read_cut, **order.cut}
        led.heard_ms, led.waiting_ms = now_ms, None
        return [*led.replica.answers(now_ms)]

    def leader_known(self, event: LeaderKnown, now_ms: float) -> list[Instruction]:
        led = self.led.get(event.shard)
        if led is None or event.term <= led.term:
            return []
        led.take_back()
        led.term, led.leader, led.resume = event.term, event.leader, event.last
        led.leads = event.claim > 0 and event.claim == led.claim
        led.heard_ms, led.asked_ms, led.waiting_ms = now_ms, None, None
        if not led.leads:
            return []
        return [Report(LeaderElected(self.around.me, event.shard, event.term))]

    def refused(self, event: OrderRefused, now_ms: float) -> list[Instruction]:
        led = self.led.get(event.shard)
        if led is not None and event.term >= led.term:
            led.take_back()
            led.heard_ms = now_ms
        return []

    def lost(self, event: OrdersLost, _now_ms: float) -> list[Instruction]:
        """What this replica should do next was ordered so long ago that the log has forgotten it."""
        led = self.led.get(event.shard)
        if led is None or led.replica.stopped is not None or event.after < led.read:
            return []
        replica = led.replica
        why = f" ({event.reason})" if event.reason else ""
        replica.stopped = f"order {event.after + 1} of {event.shard} is kept nowhere any more{why}"
        return [StopReplica(replica.replica, replica.stopped)]

    # --- time -----------------------------------------------------------------------------------------

    def came(self, replica: SegmentReplica, header: UnitHeader, now_ms: float) -> list[Instruction]:
        led = self.led.get(replica.replica.shard)
        if led is not None:
            led.arrivals[header.stream].came(replica.inboxes[header.stream].available, now_ms)
        return []

    def tick(self, now_ms: float) -> list[Instruction]:
        out: list[Instruction] = []
        for led in self._at_work():
            for arrivals in led.arrivals.values():
                arrivals.settle(now_ms, self.around.settings.order_settle_ms)
            fresh = led.fresh() if led.has_room else {}
            if not fresh:
                led.waiting_ms = None
            elif led.leads:
                out += self._order(led, fresh)
            else:
                led.waiting_ms = now_ms if led.waiting_ms is None else led.waiting_ms
                if now_ms >= self._takes_over_ms(led):
                    self.claims += 1
                    led.asked_ms, led.claim = now_ms, self.claims
                    out.append(Lead(led.replica.replica.shard, led.term + 1, led.claim))
        return out

    def wake_times_ms(self) -> list[float]:
        settle = self.around.settings.order_settle_ms
        times: list[float] = []
        for led in self._at_work():
            times += [arrivals.coming[0][1] + settle for arrivals in led.arrivals.values() if arrivals.coming]
            if led.waiting_ms is not None and not led.leads:
                times.append(self._takes_over_ms(led))
        return times

    def check(self) -> None:
        for shard, led in self.led.items():
            assert isinstance(led.replica.cuts, LeaderCuts)
            numbers = sorted(led.replica.cuts.orders)
            require(
                numbers == list(range(led.replica.committed + 1, led.read + 1)), f"{shard}: orders have a hole", shard
            )
            require(led.leads or led.given == 0, f"{shard}: {self.around.me} gives orders and does not lead", shard)

    def _at_work(self) -> Iterable[Led]:
        return [led for led in self.led.values() if led.replica.stopped is None]

    def _order(self, led: Led, fresh: dict[StreamId, int]) -> list[Instruction]:
        """One more micro-batch, of all that is here. A leader that has yet to read what others ordered waits."""
        if led.read < led.resume:
            return []
        shard, number, cut = led.replica.replica.shard, led.newest + 1, {**led.cut, **fresh}
        led.given, led.given_cut = number, cut
        return [Publish(shard, led.term, (Order(number, cut, led.term),))]

    def _takes_over_ms(self, led: Led) -> float:
        """When this replica would stop to wait for somebody else to give orders.

        Those that could lead instead wait for one another, so that they do not all ask at once. One that has asked and
        has had no answer asks again after the longest of these times.
        """
        tuned = self.around.settings
        assert led.waiting_ms is not None
        since = max(led.waiting_ms, led.heard_ms)
        away = led.leader in (None, self.around.me) or led.leader not in self.around.links
        first = tuned.order_lost_ms if away else tuned.order_silent_ms
        due = since + first + self._rank(led) * tuned.order_lost_ms
        return due if led.asked_ms is None else max(due, led.asked_ms + tuned.order_silent_ms)

    def _rank(self, led: Led) -> int:
        """How many others come first: those that are in reach and older, and full ones before those that join."""
        layout, mine = self.around.layout, led.replica.replica
        full = layout.full(mine.shard)

        def place(replica: ReplicaId) -> tuple[bool, int]:
            return replica not in full, replica.index

        others = [
            replica
            for replica in layout.working(mine.shard)
            if layout.placement[replica] in self.around.links and layout.placement[replica] != led.leader
        ]
        return sum(place(replica) < place(mine) for replica in others if replica != mine)
