"""A replica with two inputs, and the watch on it: what the tests of single classes are about."""

from __future__ import annotations

from unbroken.protocol.events import GateAsked
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policies.fork.units import TentativeInbox
from unbroken.protocol.replica.feeds import Feed
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.values.consistency import DelayBound
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

SHARD = ShardId("join", 0)
LEFT, RIGHT = StreamId(ShardId("left", 0), SHARD), StreamId(ShardId("right", 0), SHARD)
RIGHT_FORKED = StreamId(ShardId("right~", 0), SHARD)
FORK = ReplicaId(ShardId("join~", 0), 1)


def replica(committed: int = 0) -> SegmentReplica:
    feeds = {LEFT: Feed(False, 1_000), RIGHT: Feed(False, 1_000)}
    out = SegmentReplica(ReplicaId(SHARD, 0), feeds, committed=committed, produced=committed)
    out.pulse = committed
    return out


def stable(stream: StreamId, number: int, cut_ms: int = 0, fold: int = 0) -> UnitHeader:
    return UnitHeader(stream, number, number, cut_ms or number, Digest(1, number), fold=fold)


def tentative(since: int, pulse: int, number: int = 1) -> UnitHeader:
    return UnitHeader(RIGHT_FORKED, number, pulse, pulse, Digest(1, pulse), stable=False, since=since)


def watch_on(home: SegmentReplica, how: DelayBound) -> InputWatch:
    inputs = {stream: TentativeInbox(stream, how.patience_ms / 2) for stream in home.inputs}
    return InputWatch(home, how, inputs, warm=True)


def ask(home: SegmentReplica, ticket: int = 1) -> None:
    home.ask(GateAsked(home.replica, "left", home.committed, ticket, 1e9))


def process(home: SegmentReplica, through: int) -> None:
    """The query takes complete cuts up to a unit, one by one, and commits them."""
    for number in range(home.committed + 1, through + 1):
        home.produced = home.pulse = number
        home.commit(number)
