"""A pause: the controller's decision, the sources that are not read, and input that nobody misses meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.topologies import chain
from unbroken.coordination.documents import LAYOUT
from unbroken.protocol.events import SourcesPolled
from unbroken.protocol.ingress.log import IngressLog, InSync
from unbroken.protocol.ingress.pause import REST_MS, Rest, rest_of
from unbroken.protocol.ingress.pulse import AdaptivePulse
from unbroken.protocol.ingress.sources import SourceSide
from unbroken.protocol.instructions import PollSources
from unbroken.protocol.placement.controller import Situation, next_layout
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.values.consistency import Consistency, DelayBound
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices.placement import FlowPaused, FlowResumed
from unbroken.protocol.values.pause import Pause
from unit.protocol.policies.fork.watching import LEFT, RIGHT, ask, process, replica, stable, watch_on

TOPOLOGY = chain((1,))
DISKS = {"a": "disk a", "b": "disk b"}
PAUSE = Pause(5_000, "the topic is moved")
PATIENCE_MS = 900.0


def layout(topology: Topology = TOPOLOGY, pause: Pause | None = None) -> Layout:
    return replace(chained_placement(topology, DISKS), pause=pause)


# --- the controller ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True], ids=["partitions", "copies"])
def test_a_wish_becomes_part_of_the_layout_and_is_told_once(whole: bool) -> None:
    topology = replace(TOPOLOGY, whole=whole)
    wished = Situation(6_000, DISKS, pause=PAUSE)
    decision = next_layout(topology, wished, layout(topology), 2)
    assert decision is not None and decision.layout.pause == PAUSE
    assert decision.notices == (FlowPaused("the topic is moved"),)
    assert next_layout(topology, wished, decision.layout, 2) is None
    over = next_layout(topology, Situation(17_300, DISKS), decision.layout, 2)
    assert over is not None and over.layout.pause is None
    assert over.notices == (FlowResumed(12.3),)


def test_a_pause_survives_being_written_down() -> None:
    paused = layout(pause=PAUSE)
    assert LAYOUT.decode(LAYOUT.encode(paused)) == paused
    assert LAYOUT.decode(LAYOUT.encode(layout())).pause is None


def test_what_sources_do_while_a_flow_is_paused() -> None:
    assert rest_of(layout(), False) is Rest.READING is rest_of(layout(), True)
    assert rest_of(layout(pause=PAUSE), False) is Rest.EMPTY
    assert rest_of(layout(pause=PAUSE), True) is Rest.STILL


# --- the sources ------------------------------------------------------------------------------------------


def side(leader: str = "a") -> SourceSide:
    log = IngressLog("a", InSync(1, leader, frozenset("ab"), 1))
    return SourceSide("a", log, AdaptivePulse(250.0, 10_000.0, 3, 250.0), grace_ms=1_000.0)


def polls(sources: SourceSide, now_ms: float) -> list[PollSources]:
    steps = sources.tick(now_ms, in_flight=0)
    sources.check()
    return [step for step in steps if isinstance(step, PollSources)]


def test_pulses_go_on_without_rows_and_less_often() -> None:
    sources = side()
    assert polls(sources, 0.0) == [PollSources(1)]
    sources.polled(SourcesPolled(1, b"", False))
    sources.rest = Rest.EMPTY
    assert polls(sources, 300.0) == []
    assert sources.wake_times_ms() == [REST_MS]
    assert polls(sources, REST_MS) == [PollSources(2, paused=True)]
    sources.polled(SourcesPolled(2, b"", False))
    sources.rest = Rest.READING
    assert polls(sources, REST_MS + 260.0) == [PollSources(3)], "it goes on at the pace that it had"


def test_nothing_is_cut_by_event_time() -> None:
    sources = side()
    sources.rest = Rest.STILL
    assert polls(sources, 0.0) == [] == polls(sources, 1e6)
    assert sources.idle(1e6) and sources.wake_times_ms() == []
    sources.rest = Rest.READING
    assert polls(sources, 1e6) == [PollSources(1)]


def test_what_a_flow_carries_without_rows_does_not_make_the_pulse_faster() -> None:
    sources = side()
    sources.pulse.period_ms = 2_000.0
    sources.rest = Rest.EMPTY
    for number in range(1, 20):
        assert polls(sources, number * 3_000.0)
        sources.polled(SourcesPolled(number, b"", False))
    assert sources.pulse.period_ms == 2_000.0


MOVES = st.lists(
    st.one_of(
        st.sampled_from(Rest).map(lambda rest: ("rest", rest)),
        st.floats(0.0, 5_000.0).map(lambda ms: ("pass", ms)),
        st.sampled_from(["a", "b"]).map(lambda leader: ("lead", leader)),
        st.booleans().map(lambda final: ("polled", final)),
    ),
    max_size=60,
)


@given(MOVES)
def test_no_source_is_asked_while_it_is_not_to_be_read(moves: list[tuple[str, object]]) -> None:
    """Whoever leads, however often the pause comes and goes: rows are asked for only while they are to be read."""
    sources, now_ms, asked, version = side(), 0.0, 0, 1
    for kind, value in moves:
        if isinstance(value, Rest):
            sources.rest = value
        elif isinstance(value, float):
            now_ms += value
        elif kind == "lead":
            version += 1
            sources.in_sync(InSync(version, str(value), frozenset("ab"), version))
        elif sources.polling:
            sources.polled(SourcesPolled(asked, b"", bool(value) and sources.rest is Rest.READING))
        for poll in polls(sources, now_ms):
            asked = poll.pulse
            assert sources.rest is not Rest.STILL and sources.log.leading and not sources.log.ended
            assert poll.paused == (sources.rest is Rest.EMPTY)
        assert all(wake >= 0 for wake in sources.wake_times_ms())


# --- replicas that lack input -----------------------------------------------------------------------------


def lacking(now_ms: float) -> InputWatch:
    """A replica that has one of two inputs of pulse 1."""
    home = replica()
    ask(home)
    watch = watch_on(home, DelayBound(1_000, alpha=0.9))
    watch.close = 3
    come(watch, 1, now_ms, left=True)
    return watch


def come(watch: InputWatch, number: int, now_ms: float, *, left: bool) -> None:
    watch.replica.arrive(stable(LEFT if left else RIGHT, number))
    watch.note(number - 1, number, now_ms)


def look(watch: InputWatch, now_ms: float, *, still: bool = False) -> Consistency:
    watch.forget()
    watch.rest(still, now_ms)
    watch.look(now_ms)
    watch.state = watch.stand(now_ms)
    watch.check()
    return watch.state


def test_input_that_cannot_come_is_not_missed() -> None:
    watch = lacking(0.0)
    for now_ms in range(100, 60_000, 400):
        assert look(watch, float(now_ms), still=True) is Consistency.STABLE
        assert not watch.stalled and not watch.wants_fork(float(now_ms))
    assert all(wake > watch.seen_ms for wake in watch.wake_times_ms())


def test_patience_begins_anew_when_the_sources_are_read_again() -> None:
    watch = lacking(0.0)
    look(watch, 50_000.0, still=True)
    assert look(watch, 50_000.0 + PATIENCE_MS - 1) is Consistency.STABLE
    assert look(watch, 50_000.0 + PATIENCE_MS) is Consistency.UP_FAILURE, "a source that is gone is missed as ever"


def test_a_replica_that_makes_up_for_a_pause_does_not_lack_anything() -> None:
    watch = lacking(0.0)
    look(watch, 50_000.0, still=True)
    for number in range(1, 31):
        come(watch, number, 50_001.0, left=False)
        come(watch, number + 1, 50_001.0, left=True)
    now_ms = 50_001.0
    for number in range(1, 31):
        now_ms += 400.0
        process(watch.replica, number)
        assert look(watch, now_ms) is Consistency.STABLE, number
    # Its last pulse is half there, since long ago; what is missing can be cut only now.
    assert watch.blocked and watch.returns_from is None
    assert look(watch, now_ms + PATIENCE_MS - 1) is Consistency.STABLE
    assert look(watch, now_ms + PATIENCE_MS) is Consistency.UP_FAILURE


def test_a_failure_from_before_the_pause_stays_one() -> None:
    watch = lacking(0.0)
    assert look(watch, PATIENCE_MS) is Consistency.UP_FAILURE
    assert look(watch, 5_000.0, still=True) is Consistency.UP_FAILURE
    come(watch, 1, 6_000.0, left=False)
    process(watch.replica, 1)
    assert look(watch, 6_000.0, still=True) is Consistency.STABLE
