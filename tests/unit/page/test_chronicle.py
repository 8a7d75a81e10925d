"""How notices are shown on a page, and what a page notices by itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import unbroken.page
from kit.page.flows import NOW_MS, dead, silent, snapshot, states, told
from unbroken.observe.notices import TABLE
from unbroken.observe.status.notices import status_of
from unbroken.page.chronicle import KEPT, Chronicle, marks_of, restored_ms
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices import Effect, Notice, Reported, Severity, known_kinds
from unbroken.protocol.values.notices.ingress import IngressDiskFailed, IngressLed, InSyncProposed
from unbroken.protocol.values.notices.placement import (
    ControllerReplaced,
    FirstLayout,
    NodeDraining,
    NodeSuspected,
    Purpose,
    ReplicaJoined,
    ReplicaPlaced,
    ReplicasDropped,
    ShardRedundant,
    SuspicionEnded,
    TakenOver,
)
from unbroken.protocol.values.notices.processes import (
    NodeBack,
    NodeDead,
    NodeGone,
    NodeSilent,
    SparkEnd,
    SparkEnded,
)
from unbroken.protocol.values.notices.replicas import InputComplete, InputMissing, ReplicaHalted
from unbroken.protocol.values.notices.sinks import UnitGivenUp, UnitsUncertain

STATIC = Path(unbroken.page.__file__).parent / "static"
FIRST, SECOND, THIRD = (ReplicaId.parse(f"totals.0#{index}") for index in range(3))
MAIL = StreamId.parse("totals.0>mail.0")


@pytest.mark.parametrize("kind", known_kinds().values(), ids=known_kinds())
def test_every_kind_has_a_presentation(kind: type[Notice]) -> None:
    """A shape, a colour and a word for its effect; one that is an error is never hidden as a note."""
    index, style, script = ((STATIC / name).read_text() for name in ("index.html", "style.css", "history.js"))
    assert f'<symbol id="k-{kind.effect.value}"' in index
    assert f".k-{kind.effect.value} {{ --c:" in style
    assert f"{kind.effect.value}: " in script
    if kind.usual_severity is Severity.ERROR:
        assert kind.effect is not Effect.NOTE


@pytest.mark.parametrize(
    ("notice", "effect", "severity"),
    [
        (ReplicaHalted(FIRST, "node-1", "[DIVIDE_BY_ZERO]"), Effect.LOSS, Severity.ERROR),
        (SparkEnded("node-1", SparkEnd.JVM_ENDED, -9), Effect.LOSS, Severity.ERROR),
        (IngressDiskFailed("node-1", "No space left on device"), Effect.LOSS, Severity.ERROR),
        (UnitGivenUp(MAIL, 4, "TimeoutError"), Effect.LOSS, Severity.ERROR),
        (UnitsUncertain(MAIL, 4, 6), Effect.LOSS, Severity.ERROR),
        (ReplicasDropped((FIRST,), lost=("node-2",)), Effect.LOSS, Severity.WARNING),
        (ReplicasDropped((FIRST,), without_disk=("node-2",)), Effect.LOSS, Severity.WARNING),
        (ReplicasDropped((FIRST,), stopped=(FIRST,)), Effect.LOSS, Severity.WARNING),
        (TakenOver((FIRST,), ("node-1",), SECOND, "node-2", from_copy=True), Effect.LOSS, Severity.WARNING),
        (NodeDead("node-2", "killed by signal 9"), Effect.LOSS, Severity.ERROR),
        (NodeSuspected("node-1", "node-2", "no sign of life"), Effect.DOUBT, Severity.WARNING),
        (ControllerReplaced("node-2"), Effect.DOUBT, Severity.WARNING),
        (InputMissing(FIRST, ("orders",), waits=False), Effect.DOUBT, Severity.WARNING),
        (ShardRedundant(FIRST.shard, 4.2), Effect.REPAIR, Severity.INFO),
        (SuspicionEnded("node-1", "node-2"), Effect.REPAIR, Severity.INFO),
        (InputComplete(FIRST, corrected=True), Effect.REPAIR, Severity.INFO),
        (NodeBack("node-2"), Effect.REPAIR, Severity.INFO),
        (NodeDraining("node-2", 3), Effect.CHANGE, Severity.INFO),
        (InSyncProposed("node-1", ("node-1", "node-2")), Effect.CHANGE, Severity.INFO),
        (ReplicaPlaced(THIRD, "node-3", Purpose.REDUNDANCY), Effect.CHANGE, Severity.INFO),
        (IngressLed("node-1", 2), Effect.CHANGE, Severity.INFO),
        (FirstLayout(("node-1", "node-2")), Effect.NOTE, Severity.INFO),
    ],
    ids=lambda value: getattr(value, "kind", None) or str(value),
)
def test_what_a_notice_means(notice: Notice, effect: Effect, severity: Severity) -> None:
    assert (notice.effect, notice.severity) == (effect, severity)
    marks = marks_of([Reported(NOW_MS, "a", notice)])
    assert bool(marks) == (effect in (Effect.LOSS, Effect.DOUBT) or isinstance(notice, ShardRedundant | NodeBack))


def test_notices_of_one_failure_make_one_mark() -> None:
    story = [
        told(NodeDead("c", "killed by signal 9"), 0),
        told(NodeSuspected("a", "c", "its connection broke"), 100),
        told(ReplicasDropped((SECOND,), lost=("c",)), 3_000),
        told(ReplicaPlaced(THIRD, "a", Purpose.REDUNDANCY), 3_000),
        told(ReplicaJoined(THIRD, "a"), 8_000),
        told(ShardRedundant(THIRD.shard, 5.0), 8_000),
        told(ReplicasDropped((FIRST,), lost=("c",)), 60_000),
    ]
    marks = [(mark.time_ms - NOW_MS, mark.effect, len(mark.texts)) for mark in marks_of(story)]
    assert marks == [(0, Effect.LOSS, 2), (100, Effect.DOUBT, 1), (8_000, Effect.REPAIR, 1), (60_000, Effect.LOSS, 1)]


def test_since_when_a_flow_is_redundant_by_its_history() -> None:
    began = told(FirstLayout(("a", "b")), 5)
    assert restored_ms([]) is None
    assert restored_ms([began]) == NOW_MS + 5
    assert restored_ms([began, told(ShardRedundant(FIRST.shard, 1.0), 9)]) == NOW_MS + 9
    coming = told(ShardRedundant(FIRST.shard, 1.0, again=False), 9)
    assert restored_ms([began, coming]) == NOW_MS + 5, "code that comes was never less redundant"


def at(moment: int, found: dict[str, dict[str, object]], **changes: object) -> FlowSnapshot:
    return dataclasses.replace(snapshot(found), time_ms=NOW_MS + moment, **changes)  # type: ignore[arg-type]


def test_a_page_notices_a_node_that_dies_and_comes_back() -> None:
    chronicle, well = Chronicle(), states()
    chronicle.look(at(0, well))
    assert chronicle.reports == []
    chronicle.look(at(1_000, well | {"c": dead("c")}))
    chronicle.look(at(2_000, well | {"c": dead("c")}))
    chronicle.look(at(3_000, well | {"c": {"node": "c", "state": "starting"}}))
    chronicle.look(at(3_500, well | {"c": {"node": "c", "state": "lost", "reason": "its session has ended"}}))
    chronicle.look(at(4_000, well))
    assert [(one.time_ms - NOW_MS, one.notice) for one in chronicle.reports] == [
        (1_000, NodeDead("c", "killed by signal 9")),
        (4_000, NodeBack("c")),
    ]


def test_a_page_notices_silence_and_what_becomes_of_it() -> None:
    chronicle, well = Chronicle(), states()
    chronicle.look(at(0, well))
    chronicle.look(at(1_000, well | {"c": silent("c")}))
    chronicle.look(at(2_000, well))
    chronicle.look(at(3_000, well | {"c": silent("c")}))
    chronicle.look(at(4_000, well | {"c": {"node": "c", "state": "lost", "reason": "its session has ended"}}))
    chronicle.look(at(8_000, well))
    assert [one.notice for one in chronicle.reports] == [
        NodeSilent("c", "it did not answer"),
        NodeBack("c", silent=True),
        NodeSilent("c", "it did not answer"),
        NodeGone("c", "its session has ended"),
        NodeBack("c"),
    ]


def test_a_notice_in_two_places_is_shown_once() -> None:
    chronicle, well = Chronicle(), states()
    led = IngressLed("a", 2)
    well["a"]["notices"] = [status_of(told(led, 3))]
    for moment in (10, 1_000, 2_000):
        chronicle.look(at(moment, well, history=(told(led, 5),)))
    assert [one.notice for one in chronicle.reports] == [led]


def test_stories_of_the_nodes_are_shown_while_zookeeper_is_away() -> None:
    chronicle, well = Chronicle(), states()
    suspected = told(NodeSuspected("b", "c", "no sign of life"), by="b")
    well["b"]["notices"] = [status_of(suspected)]
    chronicle.look(at(10, well, zookeeper_away=True))
    assert chronicle.reports == [suspected]


def test_a_chronicle_has_a_bound_and_is_in_order() -> None:
    chronicle = Chronicle()
    late = tuple(told(IngressLed("a", term), 10_000 * term) for term in range(KEPT + 50))
    chronicle.look(at(0, states(), history=late[50:]))
    chronicle.look(at(1_000, states(), history=late))
    chronicle.check()
    assert chronicle.reports == list(late[50:])


def test_nothing_new_leaves_the_list_as_it_is() -> None:
    chronicle = Chronicle()
    chronicle.look(at(0, states(), history=(told(FirstLayout(("a", "b"))),)))
    before = chronicle.reports
    chronicle.look(at(1_000, states(), history=(told(FirstLayout(("a", "b"))),)))
    assert chronicle.reports is before


def test_every_example_of_the_handbook_can_be_shown() -> None:
    story = [told(example) for words in TABLE.values() for example in words.examples]
    assert marks_of(story) and all(mark.texts for mark in marks_of(story))
