"""How far the slowest shard is that sources have to wait for."""

from __future__ import annotations

from kit.topologies import diamond, join_of_two
from unbroken.protocol.events import Produced, Received, Tick
from unbroken.protocol.ingress.backpressure import BEHIND, LEFT_MS, slowest
from unbroken.protocol.ingress.log import Held, InSync, ProposeInSync, Tip
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.messages import Progress
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.settings import ProtocolSettings
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.protocol.values.units import Digest, UnitHeader

JOIN, DIAMOND = join_of_two(), diamond()
"""left > a, right > b, (a, b) > join > last, and source > a > (b, c) > d; two replicas of each."""


def pulses(**parts: int | tuple[int, int]) -> dict[ReplicaId, int]:
    out: dict[ReplicaId, int] = {}
    for part, number in parts.items():
        both = (number, number) if isinstance(number, int) else number
        out |= {ReplicaId(ShardId(part, 0), index): pulse for index, pulse in enumerate(both)}
    return out


def reached(
    topology: Topology, progress: dict[ReplicaId, int], ahead: dict[ReplicaId, int] | None = None, newest: int = 10
) -> int:
    layout = chained_placement(topology, {f"n{i}": f"disk{i}" for i in range(4)})
    return slowest(topology, layout, progress, ahead or {}, newest)


def test_the_fastest_replica_of_the_slowest_shard() -> None:
    assert reached(JOIN, pulses(a=(9, 3), b=(8, 2), join=(7, 8), last=(1, 6))) == 6


def test_nobody_waits_for_one_that_lacks_input() -> None:
    progress = pulses(a=10, b=10, join=4, last=4)
    assert reached(JOIN, progress) == 4
    assert reached(JOIN, progress, pulses(join=9, last=9)) == 9
    assert reached(JOIN, progress, pulses(join=(0, 9), last=9)) == 9, "the other one will get it from the first"


def test_nor_for_one_that_all_go_on_without() -> None:
    """Shard b of the diamond is out of reach."""
    progress = pulses(a=10, b=3, c=10, d=3)
    assert reached(DIAMOND, progress) == 3
    assert reached(DIAMOND, progress, pulses(d=10)) == 10
    assert reached(DIAMOND, progress, pulses(d=10 + BEHIND), newest=10 + BEHIND) == 3, "what it lacks has to be kept"


def test_nor_for_one_that_is_given_nothing() -> None:
    progress = pulses(a=10, b=10, join=3, last=3)
    assert reached(JOIN, progress, pulses(join=10)) == 10
    assert reached(JOIN, pulses(a=10, b=10, join=5, last=3), pulses(join=10)) == 3, "it has something to do"


def two_sources() -> tuple[NodeProtocol, dict[str, StreamId]]:
    """left > a, right > b, (a, b) > join > last; the leader has all the ingress, and the log has ten pulses."""
    topology = join_of_two()
    layout = chained_placement(topology, {name: f"disk of {name}" for name in ("n0", "n1", "n2", "n3")})
    members = frozenset(layout.nodes_of(INGRESS))
    me = next(iter(layout.nodes_of(INGRESS)))
    recovered = {replica: StoredReplica() for replica in layout.hosted(me)}
    node = NodeProtocol(me, topology, layout, InSync(1, me, members, 0), recovered, ProtocolSettings(), f"disk of {me}")
    for step in node.start(0):
        if isinstance(step, ProposeInSync):
            assert node.sources is not None
            node.around.sync = step.proposal
            node.sources.in_sync(step.proposal)
            for member in members - {me}:
                node.sources.received(member, Held(step.proposal.term, Tip(), 0))
    assert node.sources is not None and node.ingress is not None
    return node, {
        stream.producer.part: stream for stream in topology.streams if stream.producer.part in topology.sources
    }


def fed(node: NodeProtocol, streams: dict[str, StreamId], pulse: int, *sources: str) -> None:
    """A pulse is in the log, and these sources could be read."""
    assert node.sources is not None and node.ingress is not None
    node.sources.log.append(b"", pulse)
    headers = tuple(UnitHeader(streams[name], pulse, pulse, 0, Digest(1, 1)) for name in sources)
    node.handle(Produced(node.ingress, pulse, headers), node.seen_ms)


def moves(node: NodeProtocol, now_ms: float, **parts: int) -> None:
    for part, pulse in parts.items():
        replica = ReplicaId(ShardId(part, 0), 0)
        node.handle(Received(node.layout.placement[replica], Progress(replica, pulse)), now_ms)


def test_a_source_that_cannot_be_read_does_not_keep_others_from_being_cut() -> None:
    node, streams = two_sources()
    assert node.sources is not None
    for pulse in range(1, 5):
        fed(node, streams, pulse, "left", "right")
    moves(node, 10.0, a=4, b=4, join=4, last=4)
    for pulse in range(5, 11):
        fed(node, streams, pulse, "left")  # the right one has failed
    moves(node, 20.0, a=10)
    assert node.backpressure.in_flight() == 6, "it may have been slow for a moment"
    moves(node, 20.0 + LEFT_MS, a=10)
    assert node.backpressure.in_flight() == 0 and node.backpressure.left == {"b", "join", "last"}
    # It comes back: nobody waits until what was left behind has caught up, and then everybody does as before.
    for pulse in range(5, 11):
        assert node.ingress is not None
        header = UnitHeader(streams["right"], pulse, pulse, 0, Digest(1, 1))
        node.handle(Produced(node.ingress, pulse, (header,)), node.seen_ms)
    moves(node, 30.0 + LEFT_MS, b=6, join=5, last=5)
    assert node.backpressure.in_flight() == 0 and node.backpressure.left == {"b", "join", "last"}
    moves(node, 40.0 + LEFT_MS, b=10, join=9, last=8)
    assert node.backpressure.in_flight() == 2 and not node.backpressure.left


def test_a_segment_that_is_slow_is_waited_for() -> None:
    node, streams = two_sources()
    for pulse in range(1, 11):
        fed(node, streams, pulse, "left", "right")
    moves(node, 10.0, a=10, b=4, join=4, last=4)
    moves(node, 10.0 + 10 * LEFT_MS, a=10)
    assert node.backpressure.in_flight() == 6 and not node.backpressure.left


def test_what_a_stuck_source_makes_others_keep_is_bounded() -> None:
    node, streams = two_sources()
    for pulse in range(1, BEHIND + 3):
        fed(node, streams, pulse, "left")
    moves(node, 10 * LEFT_MS, a=BEHIND + 2)
    assert node.backpressure.in_flight() == BEHIND + 2 and not node.backpressure.left


def test_where_no_source_can_be_read_the_pulse_waits() -> None:
    node, streams = two_sources()
    for pulse in range(1, 11):
        fed(node, streams, pulse)
    node.handle(Tick(), 10 * LEFT_MS)
    assert node.backpressure.in_flight() == 10 and not node.backpressure.left
