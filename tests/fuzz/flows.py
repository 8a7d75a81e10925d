"""Running flows that fuzzed messages are thrown at."""

from __future__ import annotations

import random
import zlib
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec

from unbroken.codecs.codec import Codec
from unbroken.data.unit_store import HEADER
from unbroken.errors import UnbrokenError
from unbroken.protocol.events import Event, GateAsked, Received, Tick, UnitArrived
from unbroken.protocol.ingress.log import Append, Entry, JoinRefused
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Message, Missing, Ping, Pong, Unsubscribe
from unbroken.protocol.policies.fork.messages import Health
from unbroken.protocol.policies.load_sharing.messages import Record
from unbroken.protocol.policies.passive_standby.messages import Offer
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.spark.offsets import cut_from, offset_of
from unbroken.transport.codec import MESSAGE
from unbroken_lab.sim.flows import join
from unbroken_lab.sim.steps.copies import pick_copies
from unbroken_lab.sim.steps.failures import pick_available
from unbroken_lab.sim.steps.faults import FaultyCluster
from unbroken_lab.sim.steps.flows import Pick, pick_active, pick_led, pick_strategies
from unbroken_lab.sim.steps.nonsense import run_nonsense
from unbroken_lab.sim.steps.observer import Observer
from unbroken_lab.sim.steps.schedules import take_any

FLOWS: tuple[Pick, ...] = (pick_active, pick_led, pick_strategies, pick_copies, pick_available)
LATER_MS = 10_000.0
"""When the node looks at what a message has left behind: after everything that may be due by then."""

STEPS = 500
UNCHANGED = b"message"
"""Stands for all messages as they were sent."""

MOST_CHANGES = 3
TEXTS = ("", "#", "x", "right.0>join.0", "left.0>join.1", "join.0>sink.0", "join.0", "join.0#0", "join.1#2", "node-2")
NUMBERS = (-(2**63), -1, 0, 1, 2, 7, 11, 12, 13, 100, 10_000, 2**31, 2**48, 2**63, 2**80)
VALUES: tuple[Any, ...] = (*NUMBERS, *TEXTS, 0.5, True, None, [], {})


class Recorder(Observer):
    """Notes one event of each kind that comes over the network."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, tuple[NodeId, Event]] = {}

    def event(self, now_ms: float, name: NodeId, event: Event) -> None:
        if isinstance(event, Received | UnitArrived | GateAsked):
            message = event.message if isinstance(event, Received) else event
            self.seen[type(message).__name__] = (name, event)
        super().event(now_ms, name, event)


class Recorded(FaultyCluster):
    """A cluster with a recorder."""

    check_every = 50
    observer: Recorder

    def observe(self) -> Recorder:
        return Recorder()


@cache
def recorded() -> Recorded:
    """A flow in the middle of its work, in which a lost node comes back."""
    cluster = Recorded(join(2), nodes=3, pulses=1_000, standbys=1)
    rng = random.Random(7)
    for step in range(STEPS):
        if step == STEPS // 2:
            cluster.wipe("node-3")
            cluster.boot("node-3")
        take_any(cluster, rng)
    return cluster


@cache
def messages() -> tuple[tuple[NodeId, NodeId, list[Any]], ...]:
    """Messages as they are sent: receiver, sender, and the fields, the first of which says what it is."""
    shard = ShardId("join", 0)
    replica, stream = ReplicaId(shard, 0), StreamId(ShardId("left", 0), shard)
    rare: tuple[Message, ...] = (
        Missing(stream, str(replica), 3),
        Unsubscribe(stream, str(replica)),
        Offer(replica, 3),
        Record(replica, 3, Rebuilt(2), 4),
        Health(replica, Consistency.STABLE, 0),
        JoinRefused("2.1"),
        Append(2, Entry(12, 2, b"rows"), 11),
        Ping(3),
        Pong(3),
    )
    seen = [*recorded().observer.seen.values(), *(("node-1", Received("node-2", message)) for message in rare)]
    out: list[tuple[NodeId, NodeId, list[Any]]] = []
    for name, event in seen:
        match event:
            case Received(sender, message):
                out.append((name, sender, _fields(MESSAGE, message)))
            case UnitArrived(header, sender):
                out.append((name, sender, ["unit", *_fields(HEADER, header)]))
            case GateAsked(asking, instance, start, _, _, cut):
                out.append((name, "", ["gate", str(asking), instance, offset_of(start, cut)]))
    return tuple(out)


def handle_message(data: bytes) -> None:
    """A node stands whatever decodes, plausible lies included; nothing of it is kept for the next message.

    The message and its changes follow from ``data``: bytes that are changed at random hardly ever decode.
    """
    if data == UNCHANGED:
        for name, sender, fields in messages():
            _handle(name, _event(sender, fields))
        return
    rng = random.Random(data)
    name, sender, fields = deepcopy(rng.choice(messages()))
    for _ in range(rng.randint(0, MOST_CHANGES)):
        _change(rng, fields)
    if rng.random() < 0.3:
        sender = rng.choice(("node-1", "node-2", "node-3", "standby-1", "stranger"))
    # No peer gets in under the name of the node itself.
    nodes = [other for other in (name, *recorded().protocols()) if other != sender]
    _handle(rng.choice(nodes), _event(sender, fields))


def _handle(name: NodeId, event: Event) -> None:
    protocol: NodeProtocol = deepcopy(recorded().protocol(name))
    protocol.handle(event, recorded().now_ms)
    protocol.handle(Tick(), recorded().now_ms + LATER_MS)


def handle_nonsense(data: bytes) -> None:
    """A flow that much nonsense is thrown at gives the results that it gives without."""
    seed = zlib.crc32(data)
    run_nonsense(seed, FLOWS[seed % len(FLOWS)], steps=120)


def _change(rng: random.Random, value: Any) -> None:
    """Another value somewhere below the first field, which is the kind of the message."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        keys = keys[1:] if keys and keys[0] == 0 and isinstance(value[0], str) else keys
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(value[key], list | dict) or rng.random() < 0.3:
            value[key] = rng.choice(VALUES)
            return
        value = value[key]


def _event(sender: NodeId, fields: list[Any]) -> Event:
    """The event that a node makes of what comes over the network; UnbrokenError if it drops the link instead."""
    try:
        return _decoded(sender, fields)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UnbrokenError(f"unreadable: {error}") from error


def _decoded(sender: NodeId, fields: list[Any]) -> Event:
    if fields[0] == "unit":
        return UnitArrived(HEADER.decode(_bytes(HEADER, fields[1:])), sender, 1)
    if fields[0] == "gate":
        _, replica, instance, start = fields
        cut = cut_from(start)
        return GateAsked(ReplicaId.parse(replica), str(instance), int(start["cut"]), 0, recorded().now_ms + 750.0, cut)
    return Received(sender, MESSAGE.decode(_bytes(MESSAGE, fields)))


def _fields(codec: Codec[Any], value: object) -> list[Any]:
    fields: list[Any] = msgspec.msgpack.decode(codec.encode(value).partition(b" ")[2])
    return fields


def _bytes(codec: Codec[Any], fields: list[Any]) -> bytes:
    return f"{codec.name}/{codec.version} ".encode() + msgspec.msgpack.encode(fields)
