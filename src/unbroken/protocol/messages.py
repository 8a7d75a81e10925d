"""What nodes tell each other."""

from __future__ import annotations

from dataclasses import dataclass

from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.ingress_log import Append, AppendAck, Held, JoinLog, JoinRefused, Recall
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.units import Digest
from unbroken.protocol.vocabulary import PolicyMessage


@dataclass(frozen=True)
class Subscribe:
    """Send me this stream from unit ``after + 1`` on.

    Tentative units as well, those of pulses after ``heard``; none of them if that is negative.
    """

    stream: StreamId
    subscriber: str
    after: int
    heard: int = -1


@dataclass(frozen=True)
class Ack:
    """Units up to ``through`` are part of my committed state; you may drop them on my account.

    At ``level`` 1 and above: their effects are safe with so many consumers in a row, and my state can be rebuilt from
    what follows them; ``rebuilt`` says what it is worth then, and those of my consumers that are lost with it. One that
    relies on its producers lets them drop units at the level that its strategy needs, and not before.
    """

    stream: StreamId
    subscriber: str
    through: int
    level: int = 0
    rebuilt: Rebuilt = FROM_THE_FIRST


@dataclass(frozen=True)
class DigestNote:
    """My replica produced this unit with this digest; compare it with yours."""

    replica: ReplicaId
    stream: StreamId
    number: int
    digest: Digest


@dataclass(frozen=True)
class Delivered:
    """Units up to ``through`` of a stream to a sink are delivered.

    With ``stopped``, the sink takes no unit from that one on, and later ones count as delivered for no other purpose
    than to be dropped.
    """

    stream: StreamId
    through: int
    stopped: int = 0


@dataclass(frozen=True)
class Progress:
    """My replica has produced its units up to pulse ``pulse``.

    With ``ahead``, it waits for input that is missing, and has the rest of it up to that pulse: nobody has to wait for
    it.
    """

    replica: ReplicaId
    pulse: int
    ahead: int = 0


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
class AskUnit:
    """Send me this unit: my copy, which I have produced as you have, is damaged."""

    stream: StreamId
    number: int


@dataclass(frozen=True)
class LacksUnit:
    """I cannot send you this unit: it is ``gone`` here, or yet to be produced."""

    stream: StreamId
    number: int
    gone: bool


@dataclass(frozen=True)
class Claim:
    """Keep for ``replica``, which layout ``version`` counts, whatever you have of this stream and still produce."""

    stream: StreamId
    replica: ReplicaId
    version: int


@dataclass(frozen=True)
class Claimed:
    """Everything after unit ``base`` is kept for ``replica``; unit ``last`` is the newest here.

    ``rebuilt`` says what a replica is worth that begins with nothing but that; None if too little is kept for it.
    """

    stream: StreamId
    replica: ReplicaId
    base: int
    last: int
    rebuilt: Rebuilt | None = None


@dataclass(frozen=True)
class Serving:
    """This replica is at work here: whoever reads its streams or shares its shard may turn to it."""

    replica: ReplicaId


@dataclass(frozen=True)
class Ping:
    """Are you there? Answered at once, whatever else there is to do."""

    number: int


@dataclass(frozen=True)
class Pong:
    """I was there when your ping of this number came."""

    number: int


Message = (
    Subscribe
    | Unsubscribe
    | Missing
    | AskUnit
    | LacksUnit
    | Ack
    | Claim
    | Claimed
    | Serving
    | DigestNote
    | Delivered
    | Progress
    | Ping
    | Pong
    | Append
    | AppendAck
    | Recall
    | Held
    | JoinLog
    | JoinRefused
    | PolicyMessage
)
