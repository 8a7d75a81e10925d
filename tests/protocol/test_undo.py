"""The undo log: which input is kept, and what a replica is set back to."""

from __future__ import annotations

from protocol.watching import LEFT, RIGHT, replica, stable, watch_on
from unbroken.protocol.instructions import DropInbox, Instruction, Report, UndoReplica
from unbroken.protocol.tentative.missing_input import Watch
from unbroken.protocol.tentative.undo_log import UndoLog
from unbroken.protocol.values.consistency import Availability, Reconcile

HORIZON = Availability(1_000, reconcile=Reconcile.UNDO, horizon_ms=30, timed=True)
"""Units are 10 ms of event time apart: a unit and the three before it matter to what follows."""


def begin() -> tuple[Watch, UndoLog]:
    watch = watch_on(replica(), HORIZON)
    return watch, UndoLog.of(watch)


def process(watch: Watch, log: UndoLog, number: int, together: bool = False) -> list[Instruction]:
    home = watch.replica
    log.processed(number, None if together else 10.0 * number)
    home.produced = home.pulse = max(home.produced, number)
    log.committing(home, number)
    return log.committed(home, home.commit(number))


def arrive(watch: Watch, through: int) -> None:
    for stream in (LEFT, RIGHT):
        for number in range(watch.replica.inboxes[stream].available + 1, through + 1):
            watch.replica.arrive(stable(stream, number))


def run(watch: Watch, log: UndoLog, through: int) -> list[Instruction]:
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
    assert log.undo(watch) == [UndoReplica(watch.replica.replica, 6, 10)]
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
    (step,) = log.undo(watch)
    assert isinstance(step, Report)
    assert watch.replica.committed == 10


def test_units_that_were_processed_together_are_not_told_apart() -> None:
    watch, log = begin()
    run(watch, log, 10)
    arrive(watch, 20)
    process(watch, log, 18, together=True)
    assert log.causes.before(18) == 0, "nobody knows which of them still matter"
    run(watch, log, 20)
    (step,) = log.undo(watch)
    assert isinstance(step, Report), "some of them might, and those before them"
    run(watch, log, 26)
    assert log.undo(watch) == [UndoReplica(watch.replica.replica, 22, 26)]
