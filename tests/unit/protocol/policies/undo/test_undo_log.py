"""The undo log: which input is kept, and what a replica is set back to."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.instructions import DropInbox, Instruction, Report
from unbroken.protocol.policies.fork.missing_input import InputWatch
from unbroken.protocol.policies.undo.instructions import UndoReplica
from unbroken.protocol.policies.undo.undo_log import UndoLog
from unbroken.protocol.values.consistency import DelayBound, Reconcile
from unit.protocol.policies.fork.watching import LEFT, RIGHT, replica, stable, watch_on

HORIZON = DelayBound(1_000, reconcile=Reconcile.UNDO, horizon_ms=30, timed=True)
"""Units are 10 ms of event time apart: a unit and the three before it matter to what follows."""


def begin() -> tuple[InputWatch, UndoLog]:
    watch = watch_on(replica(), HORIZON)
    return watch, UndoLog.of(watch.how)


def process(watch: InputWatch, log: UndoLog, number: int, together: bool = False) -> list[Instruction]:
    home = watch.replica
    log.processed(number, None if together else 10.0 * number)
    home.produced = home.pulse = max(home.produced, number)
    log.committing(home, number)
    return log.committed(home, home.commit(number))


def arrive(watch: InputWatch, through: int) -> None:
    for stream in (LEFT, RIGHT):
        for number in range(watch.replica.inboxes[stream].available + 1, through + 1):
            watch.replica.arrive(stable(stream, number))


def run(watch: InputWatch, log: UndoLog, through: int) -> list[Instruction]:
    arrive(watch, through)
    return [step for number in range(watch.replica.committed + 1, through + 1) for step in process(watch, log, number)]


def test_input_is_kept_as_long_as_it_matters() -> None:
    watch, log = begin()
    assert run(watch, log, 3) == [], "it cannot be told yet"
    dropped = {number for step in run(watch, log, 10) if isinstance(step, DropInbox) for number in step.numbers}
    assert dropped == {1, 2, 3, 4, 5, 6}
    assert all(sorted(kept) == [7, 8, 9, 10] for kept in log.kept.values())


def test_a_replica_is_set_back_to_the_oldest_input_that_matters() -> None:
    watch, log = begin()
    run(watch, log, 10)
    arrive(watch, 12)
    assert log.undo(watch.replica) == [UndoReplica(watch.replica.replica, 6, 10)]
    home = watch.replica
    assert home.committed == 6 and home.produced == 10
    assert all(sorted(inbox.headers) == list(range(7, 13)) for inbox in home.inboxes.values())
    home.check()
    run(watch, log, 12)
    assert home.committed == 12 and all(len(kept) == 4 for kept in log.kept.values())
    home.check()


def test_without_that_input_it_goes_back_to_its_last_state() -> None:
    watch, log = begin()
    run(watch, log, 10)
    for kept in log.kept.values():
        kept.clear()  # as after a restart
    (step,) = log.undo(watch.replica)
    assert isinstance(step, Report)
    assert watch.replica.committed == 10


def test_units_that_were_processed_together_are_not_told_apart() -> None:
    watch, log = begin()
    run(watch, log, 10)
    arrive(watch, 20)
    process(watch, log, 18, together=True)
    assert log.causes.before(18) == 0, "nobody knows which of them still matter"
    run(watch, log, 20)
    (step,) = log.undo(watch.replica)
    assert isinstance(step, Report), "some of them might, and those before them"
    run(watch, log, 26)
    assert log.undo(watch.replica) == [UndoReplica(watch.replica.replica, 22, 26)]


def fold(watch: InputWatch, log: UndoLog, first: int, last: int, time_ms: float) -> list[Instruction]:
    """Units up to ``last`` are processed together at a time."""
    arrive(watch, last)
    home = watch.replica
    log.processed(last, time_ms, first)
    home.produced = home.pulse = max(home.produced, last)
    log.committing(home, last)
    return log.committed(home, home.commit(last))


def test_of_units_that_are_taken_together_time_after_time_no_more_is_kept_than_matters() -> None:
    watch, log = begin()
    for last in range(4, 404, 4):
        fold(watch, log, last - 3, last, 10.0 * (last - 4))
        log.check()
        log.causes.check()
    assert all(sorted(kept) == list(range(393, 401)) for kept in log.kept.values())
    assert log.undo(watch.replica) == [UndoReplica(watch.replica.replica, 392, 400)]
    assert len(log.causes.marks) < 20 and len(log.causes.folded) < 5


def test_a_replica_is_never_set_back_to_the_middle_of_what_was_taken_together() -> None:
    watch, log = begin()
    run(watch, log, 10)
    fold(watch, log, 11, 18, 110.0)
    fold(watch, log, 19, 20, 190.0)
    # With unit 18 the time came to 190, so the rows of all that were taken with it matter until it is 220.
    assert log.causes.before(20) == 10
    fold(watch, log, 21, 23, 219.0)
    assert log.causes.before(23) == 10
    fold(watch, log, 24, 25, 221.0)
    assert log.causes.before(25) == 18


def test_a_log_with_a_hole_is_found() -> None:
    watch, log = begin()
    run(watch, log, 10)
    log.check()
    del log.kept[LEFT][8]
    with pytest.raises(InvariantViolation, match="between 7 and 10"):
        log.check()
