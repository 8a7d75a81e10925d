"""Single steps of a pulse, as one node sees them: what belongs together, what is remembered, and for how long."""

from __future__ import annotations

from dataclasses import replace

from unbroken.observe.tracing.ids import Ids, Sampling
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.spans import Seen, Span
from unbroken.protocol.events import Event, GateAsked, Produced, SinkDelivered, SinkFailed, UnitArrived
from unbroken.protocol.instructions import AnswerGate, Deliver, Instruction, SendUnit, StoreUnit
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import Digest, UnitHeader

IDS = Ids("run")
SHARD = ShardId("sums", 0)
REPLICA = ReplicaId(SHARD, 1)
LEFT, RIGHT = (StreamId.parse(f"{source}.0>sums.0") for source in ("left", "right"))
OUT, OTHER = (StreamId.parse(f"sums.0>{sink}.0") for sink in ("files", "table"))


def unit(stream: StreamId, number: int, rows: int = 10) -> UnitHeader:
    return UnitHeader(stream, number, number, 1, Digest(rows, 1), 80)


class Node:
    """Node ``a``, whose clock goes on by 10 with each event."""

    def __init__(self, every: int = 1) -> None:
        self.asked: list[tuple[ReplicaId, int]] = []
        self.maker = PulseSpans("a", IDS, Sampling(every), self._spent)
        self.now_ns = 0
        self.ticket = 0

    def _spent(self, replica: ReplicaId, number: int) -> dict[str, float]:
        self.asked.append((replica, number))
        return {"addBatch": 5.0}

    def see(self, event: Event, *steps: Instruction, leading: bool = False) -> list[Span]:
        self.now_ns += 10
        return self.maker.see(Seen(self.now_ns, self.now_ns + 1, event, steps, leading))

    def takes(self, stream: StreamId, number: int, sender: str = "b") -> list[Span]:
        header = unit(stream, number)
        return self.see(UnitArrived(header, sender), StoreUnit(REPLICA, header))

    def asks(self, start: int, answer: int | None = None, instance: str = "0") -> list[Span]:
        """A source of Spark asks for what follows ``start``, and is answered at once."""
        self.ticket += 1
        steps = () if answer is None else (AnswerGate(self.ticket, answer),)
        return self.see(GateAsked(REPLICA, instance, start, self.ticket, 0.0), *steps)

    def produces(self, number: int, *steps: Instruction) -> list[Span]:
        return self.see(Produced(REPLICA, number, (unit(OUT, number), unit(OTHER, number))), *steps)


def test_all_sources_of_a_query_ask_and_there_is_one_micro_batch() -> None:
    node = Node()
    node.takes(LEFT, 1)
    node.takes(RIGHT, 1)
    node.asks(0, 1, "first")
    node.asks(0, 1, "second")
    node.produces(1)
    (span,) = node.asks(1, instance="first")
    assert node.asks(1, instance="second") == []
    assert (span.start_ns, span.end_ns) == (31, 60), "from the first answer to the first question after it"
    assert span.attributes["unbroken.spark.addBatch_ms"] == 5.0 and node.asked == [(REPLICA, 1)]


def test_it_follows_from_the_unit_that_came_last_and_is_linked_to_the_others() -> None:
    node = Node()
    node.takes(RIGHT, 1)
    node.takes(LEFT, 1)
    node.asks(0, 1)
    node.produces(1)
    (span,) = node.asks(1)
    assert span.parent == IDS.receive(1, LEFT, 1, "a") and span.links == (IDS.receive(1, RIGHT, 1, "a"),)


def test_without_knowing_its_input_it_follows_from_the_cut() -> None:
    node = Node()
    node.asks(0, 1)
    node.produces(1)
    (span,) = node.asks(1)
    assert span.parent == IDS.cut(1) and span.links == ()


def test_input_that_is_processed_is_forgotten() -> None:
    node = Node()
    for number in range(1, 50):
        node.takes(LEFT, number)
        node.see(UnitArrived(unit(LEFT, number), "c"))
        node.asks(number - 1, number)
        node.produces(number)
    node.asks(49)
    (inputs,) = node.maker._inputs.values()
    assert not inputs.receipts and not inputs.copies and not node.maker._batches


def test_nothing_is_asked_of_spark_for_what_is_not_traced() -> None:
    node = Node(every=2)
    for number in range(1, 5):
        node.asks(number - 1, number)
        node.produces(number)
    node.asks(4)
    assert node.asked == [(REPLICA, 2), (REPLICA, 4)]


def test_an_answer_that_there_is_nothing_begins_no_micro_batch() -> None:
    node = Node()
    node.asks(0, 0)
    node.produces(1)
    assert node.asks(1) == []


def test_an_offer_says_to_whom_and_counts_rows_once() -> None:
    node = Node()
    sends = (
        SendUnit("c", REPLICA, unit(OUT, 1)),
        SendUnit("b", REPLICA, unit(OUT, 1)),
        SendUnit("d", REPLICA, unit(OUT, 2)),
    )
    (span,) = node.produces(1, *sends)
    assert span.attributes["unbroken.sent_to"] == ("b", "c")
    assert span.attributes["unbroken.rows"] == 10, "both sinks are given the same ones"
    assert span.place == IDS.offer(1, SHARD, 1, "a")


def test_units_that_a_micro_batch_passes_over_are_part_of_their_own_pulses() -> None:
    node = Node()
    node.asks(3, 6)
    headers = tuple(unit(OUT, number, 0 if number < 6 else 10) for number in (4, 5, 6))
    offers = node.see(Produced(REPLICA, 6, headers))
    spans = node.asks(6)
    assert [span.attributes["unbroken.pulse"] for span in offers] == [4, 5, 6]
    assert [span.place for span in spans] == [IDS.micro_batch(n, SHARD, n, "a") for n in (4, 5, 6)]
    assert [span.parent for span in offers] == [span.place for span in spans]


def test_a_sink_that_has_a_unit_already_is_told_apart() -> None:
    node = Node()
    spans: list[Span] = []
    for number, written in ((1, True), (2, False)):
        node.see(Produced(REPLICA, number, ()), Deliver(REPLICA, unit(OUT, number)))
        spans += node.see(SinkDelivered(OUT, number, written))
    assert [span.attributes["unbroken.written"] for span in spans] == [True, False]
    assert [span.parent for span in spans] == [IDS.offer(number, SHARD, number, "a") for number in (1, 2)]
    assert node.see(SinkDelivered(OUT, 3)) == [], "its beginning was not noted"


def test_a_sink_that_failed_is_a_failure() -> None:
    node = Node()
    node.see(Produced(REPLICA, 1, ()), Deliver(REPLICA, unit(OUT, 1), once=True))
    (span,) = node.see(SinkFailed(OUT, 1, "it is away"))
    assert span.failure == "it is away" and span.attributes["unbroken.written"] is False


def test_only_the_leader_tells_of_the_cut_and_once() -> None:
    headers = (unit(LEFT, 1), unit(RIGHT, 1, 5), replace(unit(LEFT, 1, 4), stream=StreamId.parse("left.0>other.0")))
    produced = Produced(ReplicaId(INGRESS, 0), 1, headers)
    assert [span.name for span in Node().see(produced)] == ["read left", "read right"]
    node = Node()
    root, *reads = node.see(produced, leading=True)
    assert root.attributes["unbroken.rows"] == 15 and root.attributes["unbroken.sources"] == ("left", "right")
    assert [span.attributes["unbroken.rows"] for span in reads] == [10, 5]
    assert [span.name for span in node.see(produced, leading=True)] == ["read left", "read right"]


def test_a_tentative_unit_says_so() -> None:
    header = replace(unit(StreamId.parse("left~.0>sums.0"), 3), stable=False, since=2)
    (span,) = Node().see(UnitArrived(header, "b"), StoreUnit(REPLICA, header, 7))
    assert span.attributes["unbroken.tentative"] is True
