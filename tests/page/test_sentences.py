"""What sentences are about, and what a page notices by itself."""

from __future__ import annotations

import dataclasses

import pytest

from page.flows import NOW_MS, dead, silent, snapshot, states, told
from unbroken.page.sentences import KEPT, Chronicle, Kind, kind_of, marks_of, restored_ms
from unbroken.page.snapshot import Sentence, Snapshot


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("node-2 lost; no longer waiting for totals.0#0", Kind.LOSS),
        ("node-2 has lost its disk; no longer waiting for totals.0#0", Kind.LOSS),
        ("totals.0#1 stopped; no longer waiting for totals.0#1", Kind.LOSS),
        ("totals.0#0 on node-1 lost; totals.0#1 takes over on node-2 from its copy", Kind.LOSS),
        ("node-2 is dead: killed by signal 9", Kind.LOSS),
        ("node-1 suspects node-2: no sign of life", Kind.DOUBT),
        ("node-2 does not answer and is not the controller any more", Kind.DOUBT),
        ("totals.0#1 lacks input of orders and goes on without it, tentatively", Kind.DOUBT),
        ("totals.0#2 on node-3 has caught up; totals.0 is redundant again after 4.2 s", Kind.REPAIR),
        ("node-1 hears node-2 again", Kind.REPAIR),
        ("totals.0#1 has all its input again; all its tentative results are replaced", Kind.REPAIR),
        ("node-2 is back", Kind.REPAIR),
        ("node-2 is being drained of 3 replicas", Kind.CHANGE),
        ("node-1 asks for an ingress of node-1, node-2", Kind.CHANGE),
        ("totals.0#2 is placed on node-3 to restore the redundancy of totals.0", Kind.CHANGE),
        ("node-1 leads the ingress (term 2)", Kind.NOTE),
        ("first layout on node-1, node-2", Kind.NOTE),
        ("something nobody has ever said", Kind.NOTE),
    ],
)
def test_what_a_sentence_is_about(text: str, kind: Kind) -> None:
    assert kind_of(text) is kind


def test_sentences_of_one_failure_make_one_mark() -> None:
    story = [
        told("c is dead: killed by signal 9", 0),
        told("a suspects c: its connection broke", 100),
        told("c lost; no longer waiting for sums.1#1", 3_000),
        told("sums.1#2 is placed on a to restore the redundancy of sums.1", 3_000),
        told("sums.1#2 on a has caught up; sums.1 is redundant again after 5.0 s", 8_000),
        told("c lost; no longer waiting for sums.0#1", 60_000),
    ]
    marks = [(mark.time_ms - NOW_MS, mark.kind.value, len(mark.texts)) for mark in marks_of(story)]
    assert marks == [(0, "loss", 2), (100, "doubt", 1), (8_000, "repair", 1), (60_000, "loss", 1)]


def test_since_when_a_flow_is_redundant_by_its_history() -> None:
    assert restored_ms([]) is None
    assert restored_ms([told("first layout on a, b", 5)]) == NOW_MS + 5
    later = [
        told("first layout on a, b", 5),
        told("sums.0#2 on a has caught up; sums.0 is redundant again after 1 s", 9),
    ]
    assert restored_ms(later) == NOW_MS + 9


def at(moment: int, found: dict[str, dict[str, object]], **changes: object) -> Snapshot:
    return dataclasses.replace(snapshot(found), time_ms=NOW_MS + moment, **changes)  # type: ignore[arg-type]


def test_a_page_notices_a_node_that_dies_and_comes_back() -> None:
    chronicle, well = Chronicle(), states()
    chronicle.look(at(0, well))
    assert chronicle.sentences == []
    chronicle.look(at(1_000, well | {"c": dead("c")}))
    chronicle.look(at(2_000, well | {"c": dead("c")}))
    chronicle.look(at(3_000, well | {"c": {"node": "c", "state": "starting"}}))
    chronicle.look(at(3_500, well | {"c": {"node": "c", "state": "lost", "reason": "its session has ended"}}))
    chronicle.look(at(4_000, well))
    assert [(one.time_ms - NOW_MS, one.text) for one in chronicle.sentences] == [
        (1_000, "c is dead: killed by signal 9"),
        (4_000, "c is back"),
    ]


def test_a_page_notices_silence_and_what_becomes_of_it() -> None:
    chronicle, well = Chronicle(), states()
    chronicle.look(at(0, well))
    chronicle.look(at(1_000, well | {"c": silent("c")}))
    chronicle.look(at(2_000, well))
    chronicle.look(at(3_000, well | {"c": silent("c")}))
    chronicle.look(at(4_000, well | {"c": {"node": "c", "state": "lost", "reason": "its session has ended"}}))
    chronicle.look(at(8_000, well))
    assert [one.text for one in chronicle.sentences] == [
        "c does not answer: it did not answer",
        "c answers again",
        "c does not answer: it did not answer",
        "c is lost, its session has ended",
        "c is back",
    ]


def test_what_a_node_tells_in_two_places_is_shown_once() -> None:
    chronicle, well = Chronicle(), states()
    well["a"]["story"] = [{"time_ms": NOW_MS + 3, "sentence": "a leads the ingress (term 2)"}]
    history = (told("a leads the ingress (term 2)", 5),)
    for moment in (10, 1_000, 2_000):
        chronicle.look(at(moment, well, history=history))
    assert [one.text for one in chronicle.sentences] == ["a leads the ingress (term 2)"]


def test_stories_of_the_nodes_are_shown_while_zookeeper_is_away() -> None:
    chronicle, well = Chronicle(), states()
    well["b"]["story"] = [{"time_ms": NOW_MS, "sentence": "b suspects c: no sign of life"}]
    chronicle.look(at(10, well, zookeeper_away=True))
    assert [(one.node, one.text) for one in chronicle.sentences] == [("b", "b suspects c: no sign of life")]


def test_a_chronicle_has_a_bound_and_is_in_order() -> None:
    chronicle = Chronicle()
    late = tuple(Sentence(NOW_MS + 10_000 * i, "a", f"sentence {i}") for i in range(KEPT + 50))
    chronicle.look(at(0, states(), history=late[50:]))
    chronicle.look(at(1_000, states(), history=late))
    chronicle.check()
    assert [one.text for one in chronicle.sentences] == [f"sentence {i}" for i in range(50, KEPT + 50)]


def test_nothing_new_leaves_the_list_as_it_is() -> None:
    chronicle = Chronicle()
    chronicle.look(at(0, states(), history=(told("first layout on a, b"),)))
    before = chronicle.sentences
    chronicle.look(at(1_000, states(), history=(told("first layout on a, b"),)))
    assert chronicle.sentences is before
