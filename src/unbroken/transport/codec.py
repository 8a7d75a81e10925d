"""Messages as bytes: a tag and JSON, with the bodies of log entries behind it. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.protocol.ingress.log import Append, AppendAck, Entry, Held, JoinLog, JoinRefused, Recall, Tip
from unbroken.protocol.messages import (
    Ack,
    AskUnit,
    Claim,
    Claimed,
    Delivered,
    DigestNote,
    Health,
    LacksUnit,
    Message,
    Missing,
    Offer,
    Ping,
    Pong,
    Progress,
    Record,
    Serving,
    Subscribe,
    Unsubscribe,
)
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.units import Digest


def encode(message: Message) -> bytes:
    """One line of JSON; an ``Append`` is followed by the body of its entry."""
    body = b""
    match message:
        case Subscribe(stream, subscriber, after, heard):
            fields: list[Any] = ["subscribe", str(stream), subscriber, after, heard]
        case Unsubscribe(stream, subscriber):
            fields = ["unsubscribe", str(stream), subscriber]
        case Missing(stream, subscriber, base):
            fields = ["missing", str(stream), subscriber, base]
        case AskUnit(stream, number):
            fields = ["ask-unit", str(stream), number]
        case LacksUnit(stream, number, gone):
            fields = ["lacks-unit", str(stream), number, gone]
        case Claim(stream, replica, version):
            fields = ["claim", str(stream), str(replica), version]
        case Claimed(stream, replica, base, last, rebuilt):
            worth = None if rebuilt is None else rebuilt.to_json()
            fields = ["claimed", str(stream), str(replica), base, last, worth]
        case Serving(replica):
            fields = ["serving", str(replica)]
        case Ack(stream, subscriber, through, level, rebuilt):
            fields = ["ack", str(stream), subscriber, through, *([level, rebuilt.to_json()] if level else [])]
        case Record(replica, purged, rebuilt, pending):
            fields = ["record", str(replica), purged, rebuilt.to_json(), pending]
        case Offer(replica, version):
            fields = ["offer", str(replica), version]
        case DigestNote(replica, stream, number, digest):
            fields = ["digest", str(replica), str(stream), number, digest.to_json()]
        case Delivered(stream, through, stopped):
            fields = ["delivered", str(stream), through, stopped]
        case Progress(replica, pulse, ahead):
            fields = ["progress", str(replica), pulse, ahead]
        case Health(replica, state, tentative):
            fields = ["health", str(replica), state.value, tentative]
        case Ping(number):
            fields = ["ping", number]
        case Pong(number):
            fields = ["pong", number]
        case JoinLog(session, index, tip):
            fields = ["join-log", session, index, tip.term, tip.index]
        case Recall(term):
            fields = ["recall", term]
        case Held(term, tip, committed):
            fields = ["held", term, tip.term, tip.index, committed]
        case JoinRefused(session):
            fields = ["join-refused", session]
        case AppendAck(term, index):
            fields = ["append-ack", term, index]
        case Append(term, None, committed):
            fields = ["commit", term, committed]
        case Append(term, Entry() as entry, committed):
            fields = ["append", term, committed, entry.index, entry.term, entry.pulse, entry.final]
            body = entry.body
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n" + body


def purpose(message: Message) -> str:
    """What the bytes of a message are spent on: acknowledgements, copies of the ingress log, or keeping in touch."""
    match message:
        case Ack() | AppendAck() | Delivered() | Claimed() | Offer() | Record():
            return "acknowledgements"
        case Append():
            return "redundancy"
        case _:
            return "coordination"


def decode(data: bytes) -> Message:
    head, _, body = data.partition(b"\n")
    try:
        tag, *rest = json.loads(head)
        return _DECODERS[tag](rest, body)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UnbrokenError(f"a peer sent a message that cannot be read: {head[:200]!r} ({error})") from error


def _append(f: list[Any], body: bytes) -> Append:
    return Append(int(f[0]), Entry(int(f[2]), int(f[3]), body, int(f[4]), bool(f[5])), int(f[1]))


def _ack(f: list[Any]) -> Ack:
    stream, subscriber, through = StreamId.parse(f[0]), str(f[1]), int(f[2])
    if len(f) == 3:
        return Ack(stream, subscriber, through)
    return Ack(stream, subscriber, through, int(f[3]), Rebuilt.from_json(f[4]))


def _claimed(f: list[Any]) -> Claimed:
    rebuilt = None if f[4] is None else Rebuilt.from_json(f[4])
    return Claimed(StreamId.parse(f[0]), ReplicaId.parse(f[1]), int(f[2]), int(f[3]), rebuilt)


_DECODERS: dict[str, Callable[[list[Any], bytes], Message]] = {
    "subscribe": lambda f, _: Subscribe(StreamId.parse(f[0]), str(f[1]), *(int(number) for number in f[2:4])),
    "unsubscribe": lambda f, _: Unsubscribe(StreamId.parse(f[0]), str(f[1])),
    "missing": lambda f, _: Missing(StreamId.parse(f[0]), str(f[1]), int(f[2])),
    "ask-unit": lambda f, _: AskUnit(StreamId.parse(f[0]), int(f[1])),
    "lacks-unit": lambda f, _: LacksUnit(StreamId.parse(f[0]), int(f[1]), bool(f[2])),
    "claim": lambda f, _: Claim(StreamId.parse(f[0]), ReplicaId.parse(f[1]), int(f[2])),
    "claimed": lambda f, _: _claimed(f),
    "record": lambda f, _: Record(ReplicaId.parse(f[0]), int(f[1]), Rebuilt.from_json(f[2]), int(f[3])),
    "offer": lambda f, _: Offer(ReplicaId.parse(f[0]), int(f[1])),
    "serving": lambda f, _: Serving(ReplicaId.parse(f[0])),
    "join-log": lambda f, _: JoinLog(str(f[0]), int(f[1]), Tip(int(f[2]), int(f[3]))),
    "recall": lambda f, _: Recall(int(f[0])),
    "held": lambda f, _: Held(int(f[0]), Tip(int(f[1]), int(f[2])), int(f[3])),
    "join-refused": lambda f, _: JoinRefused(str(f[0])),
    "ack": lambda f, _: _ack(f),
    "digest": lambda f, _: DigestNote(ReplicaId.parse(f[0]), StreamId.parse(f[1]), int(f[2]), Digest.from_json(f[3])),
    "delivered": lambda f, _: Delivered(StreamId.parse(f[0]), int(f[1]), int(f[2])),
    "progress": lambda f, _: Progress(ReplicaId.parse(f[0]), *(int(number) for number in f[1:3])),
    "health": lambda f, _: Health(ReplicaId.parse(f[0]), Consistency(f[1]), int(f[2])),
    "ping": lambda f, _: Ping(int(f[0])),
    "pong": lambda f, _: Pong(int(f[0])),
    "append-ack": lambda f, _: AppendAck(int(f[0]), int(f[1])),
    "commit": lambda f, _: Append(int(f[0]), None, int(f[1])),
    "append": _append,
}
