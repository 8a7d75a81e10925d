"""The queue and the thread between a node's loop and an exporter: bounded, never waited for, and counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from kit.support import wait_until
from unbroken.observe.status.node import TraceCounts
from unbroken.observe.tracing.ids import Ids, Sampling
from unbroken.observe.tracing.incidents import IncidentSpans
from unbroken.observe.tracing.pulses import PulseSpans
from unbroken.observe.tracing.selection import notable
from unbroken.observe.tracing.spans import Recent, Span
from unbroken.observe.tracing.tracing import Limits, Tracing
from unbroken.protocol.events import Event, LinkLost, Produced, Tick, UnitArrived
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import AnswerGate, Deliver, DropInbox, Instruction, SendUnit, StoreUnit
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken_lab.sim.flows import chain

STREAM = StreamId.parse("numbers.0>s0.0")
REPLICA = ReplicaId(ShardId("s0", 0), 0)
LEADER = ReplicaId(INGRESS, 0)
DEADLINE_S = 20.0


def header(pulse: int) -> UnitHeader:
    return UnitHeader(STREAM, pulse, pulse, pulse, Digest(10, 1), 80)


class Taken:
    """An exporter that keeps what it is given; it waits, fails or raises if it is told to."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.batches: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.good = True
        self.error: Exception | None = None
        self.closed = False

    def export(self, spans: Sequence[Span]) -> bool:
        assert self.open.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.batches.append(len(spans))
        self.spans += spans if self.good else []
        return self.good

    def close(self) -> None:
        self.closed = True


Made = Callable[..., Tracing]


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def made(taken: Taken) -> Iterator[Made]:
    opened: list[Tracing] = []

    def make(every: int = 1, **limits: float) -> Tracing:
        ids, sampling = Ids("run"), Sampling(every)
        layout = chained_placement(chain((1,)), {"a": "1", "b": "2"})
        incidents = IncidentSpans("a", ids, layout, InSync(1, "a", frozenset({"a"}), 0), 0)
        pulses = PulseSpans("a", ids, sampling, lambda replica, number: {})
        found = Limits(**{"delay_s": 0.01, **limits})  # type: ignore[arg-type]
        opened.append(Tracing(sampling, pulses, incidents, taken, lambda: True, lambda node: "1", found))
        return opened[-1]

    yield make
    taken.open.set()
    for tracing in opened:
        tracing.close()


def cut(tracing: Tracing, pulse: int) -> None:
    """Two spans: the root of a pulse, and the source that was read."""
    tracing.seen(1, Produced(LEADER, pulse, (header(pulse),)), [])


def test_what_the_loop_has_seen_becomes_spans_elsewhere(made: Made, taken: Taken) -> None:
    tracing = made()
    tracing.start()
    for pulse in (1, 2, 3):
        cut(tracing, pulse)
    wait_until(lambda: len(taken.spans) == 6, DEADLINE_S, "all spans")
    assert [span.name for span in taken.spans] == ["cut", "read numbers"] * 3
    wait_until(lambda: tracing.counts() == TraceCounts(exported=6, dropped=0, failed=0), DEADLINE_S, "the counts")


def test_the_loop_does_not_wait_and_what_does_not_fit_is_counted(made: Made, taken: Taken) -> None:
    """Nothing takes anything out of the queue before the thread is started."""
    tracing = made(queue=5)
    for pulse in range(1, 9):
        cut(tracing, pulse)
    assert tracing.counts() == TraceCounts(exported=0, dropped=3, failed=0)
    tracing.start()
    wait_until(lambda: tracing.exported == 10, DEADLINE_S, "those that fitted")
    assert {span.attributes["unbroken.pulse"] for span in taken.spans} == {1, 2, 3, 4, 5}


def test_a_collector_that_hangs_costs_the_loop_nothing(made: Made, taken: Taken) -> None:
    tracing = made(queue=4)
    taken.open.clear()
    tracing.start()
    for pulse in range(1, 101):
        cut(tracing, pulse)
    assert tracing.dropped >= 100 - 4 - 4 - 1, "the queue, what is being handed on, and what was taken out before"
    taken.open.set()
    wait_until(lambda: tracing.exported + 2 * tracing.dropped == 200, DEADLINE_S, "each is counted once")


def test_batches_are_not_larger_than_allowed(made: Made, taken: Taken) -> None:
    tracing = made(batch=3, delay_s=60.0)
    for pulse in range(1, 6):
        cut(tracing, pulse)
    tracing.start()
    wait_until(lambda: len(taken.spans) == 8, DEADLINE_S, "what fills a batch is handed on at once")
    assert max(taken.batches) <= 3
    tracing.close()
    assert len(taken.spans) == 10 and taken.closed, "the rest when the node ends"


@pytest.mark.parametrize("how", ["refuses", "raises"])
def test_spans_that_nobody_takes_are_counted_and_told_of_once(
    made: Made, taken: Taken, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracing = made()
    taken.good, taken.error = how == "raises", OSError("away") if how == "raises" else None
    tracing.start()
    with caplog.at_level(logging.WARNING):
        for pulse in (1, 2):
            cut(tracing, pulse)
            wait_until(lambda pulse=pulse: tracing.failed == 2 * pulse, DEADLINE_S, "failures")  # type: ignore[misc]
        assert [record.message.split(" (")[0] for record in caplog.records] == ["traces cannot be handed on"]
        taken.good, taken.error = True, None
        cut(tracing, 3)
        wait_until(lambda: tracing.exported == 2, DEADLINE_S, "it goes on")


def test_a_span_that_cannot_be_made_does_not_end_the_others(made: Made, taken: Taken) -> None:
    tracing = made()
    tracing.seen(1, Produced(LEADER, 1, (None,)), [StoreUnit(REPLICA, header(1))])  # type: ignore[arg-type]
    cut(tracing, 2)
    tracing.start()
    wait_until(lambda: len(taken.spans) == 2, DEADLINE_S, "the next one")
    assert tracing.failed == 1


def test_a_node_that_ends_tells_what_is_under_way_and_does_not_wait_for_ever(made: Made, taken: Taken) -> None:
    tracing = made(delay_s=60.0)
    tracing.start()
    tracing.seen(1, LinkLost("b"), [])
    tracing.close()
    assert [span.attributes["unbroken.outcome"] for span in taken.spans] == ["still missed"]
    other = made(delay_s=60.0)
    taken.open.clear()
    other.start()
    cut(other, 1)
    other.close(deadline_s=0.05)
    assert other.exported == 0


SKIPPED: list[tuple[Event, list[Instruction]]] = [
    (Tick(), []),
    (Tick(), [DropInbox(REPLICA, STREAM, (1,))]),
    (UnitArrived(header(3), "b"), [StoreUnit(REPLICA, header(3))]),
    (Produced(REPLICA, 3, (header(3),)), [SendUnit("b", REPLICA, header(3)), Deliver(REPLICA, header(3))]),
]


@pytest.mark.parametrize(("event", "steps"), SKIPPED)
def test_pulses_that_are_not_traced_do_not_get_into_the_queue(event: Event, steps: list[Instruction]) -> None:
    assert notable(event, steps, Sampling(4)) is None


def test_what_matters_gets_there_without_the_rest() -> None:
    keep, drop = StoreUnit(REPLICA, header(4)), StoreUnit(REPLICA, header(5))
    answer = AnswerGate(1, 4)
    assert notable(UnitArrived(header(4), "b"), [keep, drop, answer], Sampling(4)) == (keep, answer)
    assert notable(Tick(), [answer, DropInbox(REPLICA, STREAM, (1,))], Sampling(4)) == (answer,)
    assert notable(UnitArrived(header(4), "b"), [], Sampling(4)) == (), "a copy that is not kept"
    assert notable(LinkLost("b"), [], Sampling(4)) == ()


def test_tables_forget_the_oldest() -> None:
    table: Recent[int, str] = Recent(3)
    for number in range(5):
        table[number] = str(number)
    assert list(table) == [2, 3, 4]
    assert table.pop(9, None) is None and table.pop(3) == "3"
