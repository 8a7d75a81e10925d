"""Running flows that fuzzed messages are thrown at."""

from __future__ import annotations

import json
import random
import zlib
from copy import deepcopy
from functools import cache
from typing import Any

from protocol.cluster_model import Cluster
from protocol.consistency_schedules import pick_available
from protocol.model_parts import join
from protocol.nonsense import run_nonsense
from protocol.schedules import pick_cluster, pick_led, pick_strategies
from protocol.whole_model import pick_copies
from unbroken.errors import UnbrokenError
from unbroken.protocol.events import Event, GateAsked, Received, Tick, UnitArrived
from unbroken.protocol.ingress.log import Append, Entry, JoinRefused
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Health, Message, Missing, Offer, Ping, Pong, Record, Unsubscribe
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import UnitHeader
from unbroken.spark.offsets import cut_from, offset_of
from unbroken.transport.codec import decode, encode

FLOWS = (pick_cluster, pick_led, pick_strategies, pick_copies, pick_available)
LATER_MS = 10_000.0
"""When the node looks at what a message has left behind: after everything that may be due by then."""

STEPS = 500
UNCHANGED = b"message"
"""Stands for all messages as they were sent."""

MOST_CHANGES = 3
TEXTS = ("", "#", "x", "right.0>join.0", "left.0>join.1", "join.0>sink.0", "join.0", "join.0#0", "join.1#2", "n1")
NUMBERS = (-(2**63), -1, 0, 1, 2, 7, 11, 12, 13, 100, 10_000, 2**31, 2**48, 2**63, 2**80)
VALUES: tuple[Any, ...] = (*NUMBERS, *TEXTS, 0.5, True, None, [], {})


class Recorded(Cluster):
    """Notes one event of each kind that comes over the network."""

    check_every = 50

    def __init__(self) -> None:
        self.seen: dict[str, tuple[NodeId, Event]] = {}
        super().__init__(join(2), nodes=3, pulses=1_000, standbys=1)

    def handle(self, name: NodeId, event: Event, payload: int | None = None) -> None:
        if isinstance(event, Received | UnitArrived | GateAsked):
            message = event.message if isinstance(event, Received) else event
            self.seen[type(message).__name__] = (name, event)
        super().handle(name, event, payload)


@cache
def recorded() -> Recorded:
    """A flow in the middle of its work, in which a lost node comes back."""
    cluster = Recorded()
    rng = random.Random(7)
    for step in range(STEPS):
        if step == STEPS // 2:
            cluster.perform(("wipe", "n2", True))
            cluster.boot("n2")
        actions = cluster.enabled()
        cluster.perform(rng.choice(actions)) if actions and rng.random() > 0.1 else cluster.advance()
    return cluster


@cache
def messages() -> tuple[tuple[NodeId, NodeId, list[Any], bytes], ...]:
    """Messages as they are sent: receiver, sender, the fields, and the body that may follow them."""
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
    seen = [*recorded().seen.values(), *(("n0", Received("n1", message)) for message in rare)]
    out: list[tuple[NodeId, NodeId, list[Any], bytes]] = []
    for name, event in seen:
        match event:
            case Received(sender, message):
                head, _, body = encode(message).partition(b"\n")
                out.append((name, sender, json.loads(head), body))
            case UnitArrived(header, sender):
                out.append((name, sender, ["unit", json.loads(header.to_bytes())], b""))
            case GateAsked(asking, instance, start, _, _, cut):
                out.append((name, "", ["gate", str(asking), instance, offset_of(start, cut)], b""))
    return tuple(out)


def handle_message(data: bytes) -> None:
    """A node stands whatever decodes, plausible lies included; nothing of it is kept for the next message.

    The message and its changes follow from ``data``: bytes that are changed at random hardly ever decode.
    """
    if data == UNCHANGED:
        for name, sender, fields, body in messages():
            _handle(name, _event(sender, fields, body))
        return
    rng = random.Random(data)
    name, sender, fields, body = deepcopy(rng.choice(messages()))
    for _ in range(rng.randint(0, MOST_CHANGES)):
        _change(rng, fields)
    if rng.random() < 0.3:
        sender = rng.choice(("n0", "n1", "n2", "s0", "stranger"))
    # No peer gets in under the name of the node itself.
    nodes = [other for other in (name, *recorded().nodes) if other != sender]
    _handle(rng.choice(nodes), _event(sender, fields, body))


def _handle(name: NodeId, event: Event) -> None:
    protocol: NodeProtocol = deepcopy(recorded().nodes[name].protocol)
    protocol.handle(event, recorded().now)
    protocol.handle(Tick(), recorded().now + LATER_MS)


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


def _event(sender: NodeId, fields: list[Any], body: bytes) -> Event:
    """The event that a node makes of what comes over the network; UnbrokenError if it drops the link instead."""
    try:
        return _decoded(sender, fields, body)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UnbrokenError(f"unreadable: {error}") from error


def _decoded(sender: NodeId, fields: list[Any], body: bytes) -> Event:
    if fields[0] == "unit":
        return UnitArrived(UnitHeader.from_bytes(json.dumps(fields[1]).encode()), sender, 1)
    if fields[0] == "gate":
        _, replica, instance, start = fields
        cut = cut_from(start)
        return GateAsked(ReplicaId.parse(replica), str(instance), int(start["cut"]), 0, recorded().now + 30.0, cut)
    return Received(sender, decode(json.dumps(fields).encode() + b"\n" + body))
