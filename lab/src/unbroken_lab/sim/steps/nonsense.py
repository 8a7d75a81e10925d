"""Well-formed messages that make no sense, thrown into a simulated flow: the flow must not notice.

Every message here can be told to be nonsense by the node that receives it: a field has a value that no node would send
at any time, or its sender has no business to send it. A *plausible lie* of a peer that holds the token cannot be told,
and is left out:

- an acknowledgement, a digest, progress or an offer of the sender's own replica that is not true;
- a delivery to a sink that did not happen, a unit that the sender says it does not have;
- an entry or an answer that the leader or a member of the ingress makes up, or a term that is a little ahead;
- a question to a gate that repeats one of its query, or that comes in place of the first one of a query;
- another content, another end or another cut time of the next unit, from a producer that was asked for it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from unbroken.protocol.events import Event, GateAsked, PinAsked, Received, UnitArrived
from unbroken.protocol.ingress.log import Append, AppendAck, Entry, Held, JoinLog, JoinRefused, Recall, Tip
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import (
    Ack,
    AskUnit,
    Claim,
    Claimed,
    Delivered,
    DigestNote,
    LacksUnit,
    Message,
    Missing,
    Ping,
    Pong,
    Progress,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.policies.fork.messages import Health
from unbroken.protocol.policies.load_sharing.messages import Record
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.content import Content
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Pick, pick_active
from unbroken_lab.sim.steps.schedules import pick_fault, take_any

T = TypeVar("T")

STRANGERS = ("stranger", "client-7")
NUMBERS = (-1, -7, -(2**31), -(2**63), 2**49, 2**63, 2**80)
"""No counter of a flow ever has one of these values."""

SHARDS = (
    ShardId("nowhere", 0),
    ShardId("s1", -1),
    ShardId("s1", 2**40),
    ShardId("s1@first", 0),
    ShardId("s1@-3", 0),
    ShardId("s1@999999999", 0),
    ShardId("", 0),
    ShardId("~", 0),
    ShardId("@", 0),
)
NAMES = ("", "#", "s1.0", "s1.0#", "s1.0#x", "s1.x#0", "s1.0#-2", "s1.0#99999999999", "nowhere.0#0", "ö" * 500)


ROWS = Content(666, 1, 0, 0)


def _deep(levels: int) -> Rebuilt:
    out = Rebuilt(1)
    for _ in range(levels):
        out = Rebuilt(1, ((ShardId("s1", 0), out),))
    return out


REBUILT = (Rebuilt(-1), Rebuilt(2**60), Rebuilt(1, ((ShardId("s1", 0), Rebuilt(-4)),)), _deep(600))
DIGESTS = (Digest(-1, 0), Digest(2**70, 0), Digest(1, 2**70), Digest(0, 0, (0.0,) * 100_000))
NUMBERED = ("number", "after", "through", "pulse", "ahead", "tentative", "base", "last", "version", "purged", "pending")
KINDS = (
    Subscribe,
    Unsubscribe,
    Missing,
    AskUnit,
    LacksUnit,
    Ack,
    Claim,
    Claimed,
    Offer,
    Record,
    Serving,
    DigestNote,
    Delivered,
    Progress,
    Health,
    Ping,
    Pong,
    Append,
    AppendAck,
    Recall,
    Held,
    JoinLog,
    JoinRefused,
    UnitArrived,
    GateAsked,
    PinAsked,
)
"""Everything that comes over the network and is handled by the loop of a node."""


@dataclass
class Nonsense:
    """Makes up events for the nodes of a cluster as it is at this moment; the same choices give the same events."""

    cluster: FaultyCluster
    rng: random.Random
    last: Event | None = None
    """What is being handled at this moment."""

    def inject(self, kind: type[Any] | None = None) -> Event | None:
        """Let a node that runs handle something that makes no sense; None if there is nothing of that kind for it."""
        processes = self.cluster.world.processes()
        names = [process.name for process in processes if process.protocol is not None and not process.frozen]
        if not names:
            return None
        name = self._pick(names)
        event = self.event(name, kind or self._pick(KINDS))
        if event is not None:
            self.last = event
            self.cluster.process(name).post(event, ROWS)
            self.last = None
        return event

    def event(self, name: NodeId, kind: type[Any]) -> Event | None:
        node = self.cluster.protocol(name)
        if kind is UnitArrived:
            return self._unit(node)
        if kind is GateAsked:
            return self._question(node)
        if kind is PinAsked:
            return self._pin()
        sender = self._pick([*(other for other in self.cluster.world.machines if other != name), *STRANGERS])
        return Received(sender, self._message(node, sender, kind))

    # --- messages -------------------------------------------------------------------------------------

    def _message(self, node: NodeProtocol, sender: NodeId, kind: type[Any]) -> Message:
        match kind.__name__:
            case "Ping":
                return Ping(self._pick((*NUMBERS, 0, 1)))
            case "Pong":
                return Pong(self._pick((*NUMBERS, 0, 1)))
            case "JoinRefused":
                return JoinRefused(self._pick(NAMES))
            case "Append" | "AppendAck" | "Recall" | "Held" | "JoinLog":
                return self._about_log(kind)
        sound = self._sound(node, sender, kind)
        fields = list(vars(sound))
        spoilt = self.rng.sample(fields, self.rng.randint(1, min(2, len(fields))))
        changes = {name: self._absurd(node, sender, sound, name) for name in spoilt}
        changes = {name: value for name, value in changes.items() if value is not None}
        key = self._key(sound)
        found: Message = replace(sound, **(changes or {key: self._absurd(node, sender, sound, key)}))
        return found

    def _key(self, message: Any) -> str:
        """A field that can always be made absurd."""
        return next(n for n in ("replica", "subscriber", "through", "number") if hasattr(message, n))

    def _sound(self, node: NodeProtocol, sender: NodeId, kind: type[Any]) -> Any:
        """A message as the sender might send it, had it any reason to."""
        stream = self._pick(node.topology.streams)
        theirs = node.layout.hosted(sender) or list(node.layout.placement) or [ReplicaId(INGRESS, 0)]
        replica, number = self._pick(theirs), self.rng.randrange(20)
        reader = self._pick(sorted(node.layout.counted(stream.consumer)) or [replica])
        match kind.__name__:
            case "Subscribe":
                return Subscribe(stream, str(reader), number)
            case "Unsubscribe":
                return Unsubscribe(stream, str(reader))
            case "Missing":
                return Missing(stream, str(reader), number)
            case "Ack":
                return Ack(stream, str(reader), number)
            case "AskUnit":
                return AskUnit(stream, number)
            case "LacksUnit":
                return LacksUnit(stream, number, self.rng.random() < 0.5)
            case "Claim":
                return Claim(stream, reader, node.layout.version)
            case "Claimed":
                return Claimed(stream, reader, number, number)
            case "Offer":
                return Offer(replica, number)
            case "Record":
                return Record(replica, number, Rebuilt(number), number)
            case "Serving":
                return Serving(replica)
            case "DigestNote":
                return DigestNote(replica, stream, number, Digest(1, 1))
            case "Delivered":
                return Delivered(stream, number)
            case "Progress":
                return Progress(replica, number)
            case "Health":
                return Health(replica, self._pick(list(Consistency)), number)
        raise AssertionError(f"nothing is known about {kind.__name__}")

    def _absurd(self, node: NodeProtocol, sender: NodeId, sound: Any, name: str) -> Any:
        """A value of a field that no node would send; None if there is none."""
        if name in NUMBERED:
            return self._pick(NUMBERS)
        if name == "stopped":
            return self._pick((-1, 2**60))
        if name == "level":
            return self._pick((-1, 10**6))
        if name == "rebuilt":
            return self._pick(REBUILT)
        if name == "digest":
            return self._pick(DIGESTS)
        if name == "subscriber":
            return self._pick((*NAMES, *self._readers(node, sender, sound)))
        if name == "replica":
            return self._pick(self._others(node, sender, sound))
        if name == "stream" and not isinstance(sound, DigestNote):
            return self._pick(self._streams(node))
        return None

    def _others(self, node: NodeProtocol, sender: NodeId, sound: Any) -> list[ReplicaId]:
        """Replicas that do not exist, and those of others. What is known of those may be passed on by the ingress."""
        out = [ReplicaId(shard, 0) for shard in SHARDS]
        known = sorted(node.layout.placement)
        out += [ReplicaId(replica.shard, index) for replica in known for index in (-1, -2, 2**40)]
        if not isinstance(sound, Progress | Claimed):
            out += [replica for replica in known if node.layout.placement[replica] != sender]
        return out

    def _readers(self, node: NodeProtocol, sender: NodeId, sound: Any) -> list[str]:
        known = sorted(node.layout.placement)
        if isinstance(sound, Missing):
            return [str(replica) for replica in known if sound.stream not in node.topology.inputs(replica.shard)]
        return [str(replica) for replica in known if node.layout.placement[replica] != sender]

    def _streams(self, node: NodeProtocol) -> list[StreamId]:
        """Streams that are not in the flow."""
        out = [StreamId(one, other) for one, other in pairwise((*SHARDS, *reversed(SHARDS)))]
        return [*out, *(StreamId(stream.consumer, stream.producer) for stream in node.topology.streams)]

    def _about_log(self, kind: type[Any]) -> Message:
        number, absurd = self.rng.randrange(1, 20), self._pick(NUMBERS)
        late, tip = self._pick((2**30, 2**63)), Tip(1, number)
        entry = Entry(number, 1, b"rows", 0)
        entries = (replace(entry, index=absurd), replace(entry, term=absurd), replace(entry, pulse=absurd))
        match kind.__name__:
            case "Append":
                made: Sequence[Message] = (
                    Append(absurd, None, number),
                    Append(late, None, number),
                    Append(late, entry, number),
                    Append(1, None, absurd),
                    *(Append(self.rng.randrange(1, 5), one, number) for one in entries),
                )
            case "AppendAck":
                made = [AppendAck(absurd, number), *(AppendAck(term, absurd) for term in range(6))]
            case "Recall":
                made = [Recall(absurd), Recall(late)]
            case "Held":
                terms = range(6)
                made = [Held(absurd, tip, number), *(Held(term, Tip(1, 3), absurd) for term in terms)]
                made += [Held(term, Tip(1, absurd), 1) for term in terms]
                made += [Held(term, Tip(1, number), number + 1) for term in terms]
            case _:
                made = (JoinLog("", absurd, tip), JoinLog("", number, Tip(absurd, 9)), JoinLog("", 9, Tip(1, absurd)))
                made = (*made, JoinLog("x" * 10_000, number))
        return self._pick(made)

    # --- units and questions --------------------------------------------------------------------------

    def _unit(self, node: NodeProtocol) -> UnitArrived | None:
        """The next unit of a stream, or nearly so, from a producer that was asked for it."""
        found = [(r, s, f) for r in node.replicas.values() for s, f in r.feeds.items() if f.subscribed]
        if not found:
            return None
        replica, stream, feed = self._pick(found)
        next_one = replica.inboxes[stream].available + 1
        newest = max((header.pulse for header in replica.inboxes[stream].headers.values()), default=next_one)
        header = UnitHeader(stream, next_one, next_one if feed.numbered else newest, next_one, Digest(1, 1), 1)
        absurd = self._pick(NUMBERS)
        spoilt = [
            replace(header, number=absurd),
            replace(header, pulse=absurd),
            replace(header, cut_ms=absurd),
            replace(header, size=-1),
            replace(header, digest=self._pick(DIGESTS)),
            replace(header, generation=self._pick((0, *NUMBERS))),
            replace(header, layout=absurd),
            replace(header, since=absurd),
            replace(header, fold=absurd),
            replace(header, stable=False),
            replace(header, stream=self._pick(self._streams(node))),
            replace(header, stream=self._pick(self._streams(node)), stable=False),
            *([replace(header, pulse=next_one + 1), replace(header, pulse=next_one - 1)] if feed.numbered else []),
        ]
        return UnitArrived(self._pick(spoilt), self._pick([*sorted(feed.subscribed), *STRANGERS]), 1)

    def _question(self, node: NodeProtocol) -> GateAsked | None:
        """A question that no query asks."""
        ticket, deadline_ms = self.cluster.world.next_serial(), self.cluster.now_ms + 750.0
        unknown = [ReplicaId(shard, 0) for shard in SHARDS]
        if not node.replicas or self.rng.random() < 0.2:
            return GateAsked(self._pick(unknown), "nobody", self.rng.randrange(9), ticket, deadline_ms)
        replica = self._pick(list(node.replicas.values()))
        starts = [*NUMBERS, *range(replica.committed), *self._beyond(replica)]
        start = self._pick(starts)
        return GateAsked(replica.replica, self._pick(("nobody", *NAMES)), start, ticket, deadline_ms)

    def _beyond(self, replica: SegmentReplica) -> list[int]:
        """Micro-batches that no query can have been given."""
        available = max(inbox.available for inbox in replica.inboxes.values())
        newest = max([replica.committed, available, replica.produced, *replica.released])
        return [newest + 1, newest + 2, newest + 500]

    def _pin(self) -> PinAsked:
        """A newcomer that wants what there is not."""
        shard = self._pick([*SHARDS, *self.cluster.topology.placed_shards])
        stream = StreamId(self._pick(SHARDS), self._pick(SHARDS))
        needs = self._pick((((stream, 1),), ((stream, -1),), ((stream, 2**63),)))
        return PinAsked(
            shard, self._pick(STRANGERS), self.cluster.world.next_serial(), self._pick((0, *NUMBERS)), needs
        )

    def _pick(self, choices: Sequence[T]) -> T:
        return choices[self.rng.randrange(len(choices))]


def run_nonsense(
    seed: int | str, pick: Pick = pick_active, steps: int = 200, chance: float = 0.3, fault_chance: float = 0.01
) -> FaultyCluster:
    """A random schedule with a few faults and much nonsense, then a quiet end in which all results have to be right."""
    rng = random.Random(seed)
    cluster = pick(rng.randrange)
    cluster.observer.nonsense = cluster.world.nonsense = True
    nonsense = Nonsense(cluster, rng)
    try:
        for step in range(steps):
            if rng.random() < chance:
                nonsense.inject()
            elif rng.random() < fault_chance:
                cluster.do(pick_fault(cluster, rng))
            else:
                take_any(cluster, rng)
            if step % 10 == 0:
                cluster.check()
        cluster.settle()
    except Exception as error:
        after = "" if nonsense.last is None else f" with {str(nonsense.last)[:500]}"
        raise AssertionError(f"run_nonsense({seed!r}, {pick}): {error!r}{after}") from error
    return cluster
