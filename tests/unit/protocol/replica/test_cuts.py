"""The gate: one answer per round for all source instances of a query."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unbroken.protocol.replica.cuts import Gate, PulseCuts
from unbroken.protocol.replica.inbox import Inbox
from unbroken.protocol.values.cuts import Reach
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

LEFT = StreamId(ShardId("l", 0), ShardId("j", 0))
RIGHT = StreamId(ShardId("r", 0), ShardId("j", 0))


def setting() -> tuple[Gate, dict[StreamId, Inbox]]:
    inboxes = {LEFT: Inbox(LEFT), RIGHT: Inbox(RIGHT)}
    return Gate(PulseCuts(inboxes)), inboxes


def arrive(inboxes: dict[StreamId, Inbox], stream: StreamId, number: int) -> None:
    inboxes[stream].arrive(UnitHeader(stream, number, number, 0, Digest(0, 0)))


def test_units_that_only_build_a_state_again_are_taken_together() -> None:
    gate, inboxes = setting()
    cuts = gate.ordering
    assert isinstance(cuts, PulseCuts)
    cuts.joined = 4
    for number in range(1, 7):
        for stream in (LEFT, RIGHT):
            if stream is LEFT or number != 4:
                arrive(inboxes, stream, number)
    assert [gate.ask(instance, 0) for instance in ("left", "right")] == [3, 3], "as many as there are"
    arrive(inboxes, RIGHT, 4)
    assert gate.ask("left", 3) == 4
    assert gate.ask("left", 4) == 5, "from there on one by one"
    gate.check()


def test_where_a_micro_batch_ends_does_not_depend_on_where_it_began() -> None:
    """All of these units came with one pulse; a replica that is rebuilt begins with any of them."""
    found = []
    for begin in range(40):
        inboxes = {stream: Inbox(stream, begin, begin, pulse=begin) for stream in (LEFT, RIGHT)}
        for stream, inbox in inboxes.items():
            for number in range(begin + 1, 41):
                cut_ms, fold = (number, 0) if stream is LEFT else (100, 40)
                inbox.arrive(UnitHeader(stream, number, number, cut_ms, Digest(0, 0), fold=fold))
        cuts, ends = PulseCuts(inboxes), [begin]
        while (end := cuts.next(ends[-1])) is not None:
            ends.append(end)
            for inbox in inboxes.values():
                inbox.consume(end)
        found.append(ends[1:])
    assert found[0][-1] == 40 and len(found[0]) == 3, "they are taken together"
    assert all(ends == [end for end in found[0] if end > begin] for begin, ends in enumerate(found))


def test_a_cut_is_complete_when_every_stream_has_its_unit() -> None:
    gate, inboxes = setting()
    arrive(inboxes, LEFT, 1)
    assert gate.ordering.cut(1) is None
    arrive(inboxes, RIGHT, 1)
    assert gate.ordering.cut(1) == {LEFT: Reach(1, 1), RIGHT: Reach(1, 1)}


def test_a_round_that_was_given_up_stays_given_up() -> None:
    gate, inboxes = setting()
    assert gate.ask("left", 0) is None
    assert gate.ask("left", 0, give_up=True) == 0
    arrive(inboxes, LEFT, 1)
    arrive(inboxes, RIGHT, 1)
    assert gate.ask("right", 0) == 0, "the second instance must be told the same as the first"
    assert gate.ask("left", 0) == 1
    assert gate.ask("right", 0) == 1
    gate.check()


def test_a_round_advances_by_one_however_much_is_here() -> None:
    gate, inboxes = setting()
    for number in (1, 2, 3):
        arrive(inboxes, LEFT, number)
        arrive(inboxes, RIGHT, number)
    for start in (0, 1, 2):
        assert [gate.ask(instance, start) for instance in ("left", "right")] == [start + 1, start + 1]
    assert gate.ask("left", 3) is None


def test_a_query_that_starts_again_in_the_middle_of_a_round_gets_a_whole_round() -> None:
    gate, _ = setting()
    assert gate.ask("left", 0, give_up=True) == 0
    assert gate.ask("left again", 0) == 0
    assert gate.ask("right again", 0) == 0


@given(st.lists(st.sampled_from(["left", "right", "ask", "deadline"]), max_size=60))
def test_instances_of_a_round_agree_whatever_arrives_between(happenings: list[str]) -> None:
    gate, inboxes = setting()
    start, answers = 0, list[int]()
    for happening in happenings:
        if happening in ("left", "right"):
            stream = LEFT if happening == "left" else RIGHT
            arrive(inboxes, stream, inboxes[stream].available + 1)
            continue
        instance = ("first", "second")[len(answers)]
        answer = gate.ask(instance, start, give_up=happening == "deadline")
        gate.check()
        if answer is not None:
            answers.append(answer)
        if len(answers) == 2:
            assert answers[0] == answers[1]
            start, answers = answers[0], []
