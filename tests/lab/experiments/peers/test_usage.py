"""Processor time of processes that come and go."""

from __future__ import annotations

import os

from unbroken_lab.experiments.peers.usage import Ledger, Used, descendants

PARENT, CHILD = (10, 1.0), (11, 2.0)


def test_what_was_used_before_the_first_look_does_not_count() -> None:
    ledger = Ledger()
    ledger.look([Used(PARENT, 1, 5.0)])
    ledger.look([Used(PARENT, 1, 7.0), Used(CHILD, 10, 1.0)])
    assert ledger.total() == 3.0


def test_a_process_that_was_killed_with_its_parent_is_remembered() -> None:
    ledger = Ledger()
    ledger.look([Used(PARENT, 1, 5.0), Used(CHILD, 10, 2.0)])
    ledger.look([Used(PARENT, 1, 6.0), Used(CHILD, 10, 4.0)])
    ledger.look([])
    assert ledger.total() == 3.0


def test_a_child_that_its_parent_waited_for_counts_once() -> None:
    ledger = Ledger()
    ledger.look([Used(PARENT, 1, 5.0), Used(CHILD, 10, 2.0)])
    ledger.look([Used(PARENT, 1, 5.0), Used(CHILD, 10, 4.0)])
    # The parent's time contains all four seconds of the child, of which two are from before.
    ledger.look([Used(PARENT, 1, 9.0)])
    assert ledger.total() == 2.0


def test_a_child_that_is_gone_before_its_killed_parent_is_remembered() -> None:
    """The parent was killed at the same moment, and nobody has waited for either of them."""
    ledger = Ledger()
    ledger.look([Used(PARENT, 1, 5.0), Used(CHILD, 10, 60.0)])
    ledger.look([Used(PARENT, 1, 6.0), Used(CHILD, 10, 64.0)])
    ledger.look([Used(PARENT, 1, 6.5)])
    ledger.look([])
    assert ledger.total() == 5.5


def test_of_two_children_the_one_that_was_waited_for_counts_in_the_parent() -> None:
    ledger, other = Ledger(), (12, 3.0)
    ledger.look([Used(PARENT, 1, 0.0), Used(CHILD, 10, 2.0), Used(other, 10, 9.0)])
    ledger.look([Used(PARENT, 1, 2.5)])
    assert ledger.total() == 0.5
    ledger.look([Used(PARENT, 1, 12.0)])
    assert ledger.total() == 1.0, "it may be waited for later"


def test_an_id_that_is_used_again_is_another_process() -> None:
    ledger = Ledger()
    ledger.look([Used(PARENT, 1, 5.0)])
    ledger.look([Used((10, 9.0), 1, 0.5)])
    assert ledger.total() == 0.5


def test_this_process_is_not_among_its_descendants() -> None:
    assert os.getpid() not in {used.process[0] for used in descendants()}
