"""What nodes tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.ids import ReplicaId, StreamId
from unbroken.protocol.ingress import Append, AppendAck, JoinLog, JoinRefused
from unbroken.protocol.units import Digest


@dataclass(frozen=True)
class Subscribe:
    """Send me this stream from unit ``after + 1`` on."""

    stream: StreamId
    subscriber: str
    after: int


@dataclass(frozen=True)
class Ack:
    """Units up to ``through`` are part of my committed state; you may drop them on my account."""

    stream: StreamId
    subscriber: str
    through: int


@dataclass(frozen=True)
class DigestNote:
    """My replica produced this unit with this digest; compare it with yours."""

    replica: ReplicaId
    stream: StreamId
    number: int
    digest: Digest


@dataclass(frozen=True)
class Delivered:
    """Units up to ``through`` of a stream to a sink are delivered."""

    stream: StreamId
    through: int


@dataclass(frozen=True)
class Progress:
    """My replica has produced its units up to pulse ``pulse``."""

    replica: ReplicaId
    pulse: int


@dataclass(frozen=True)
class Unsubscribe:
    """Send me this stream no longer; I get it from another replica. What I have not acknowledged is still mine."""

    stream: StreamId
    subscriber: str


@dataclass(frozen=True)
class Missing:
    """You asked for units that I have dropped: the first that I can send is ``base + 1``."""

    stream: StreamId
    subscriber: str
    base: int


@dataclass(frozen=True)
class Claim:
    """Keep for ``replica``, which layout ``version`` counts, whatever you have of this stream and still produce."""

    stream: StreamId
    replica: ReplicaId
    version: int


@dataclass(frozen=True)
class Claimed:
    """Everything after unit ``base`` is kept for ``replica``; unit ``last`` is the newest here."""

    stream: StreamId
    replica: ReplicaId
    base: int
    last: int


@dataclass(frozen=True)
class Serving:
    """This replica is at work here: whoever reads its streams or shares its shard may turn to it."""

    replica: ReplicaId


Message = (
    Subscribe
    | Unsubscribe
    | Missing
    | Ack
    | Claim
    | Claimed
    | Serving
    | DigestNote
    | Delivered
    | Progress
    | Append
    | AppendAck
    | JoinLog
    | JoinRefused
)
