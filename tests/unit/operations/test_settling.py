"""What `unbroken pause` and `unbroken resume` wait for, by what the nodes say."""

from __future__ import annotations

import pytest

from kit.statuses import status
from unbroken.errors import DeadlinePassed
from unbroken.observe.status.node import NodeStatus
from unbroken.operations import pause as pausing
from unbroken.operations.pause import Settling


def state(
    name: str, *, leads: bool = False, reading: bool = False, pulse: int = 9, in_flight: int = 0, delivered: int = 9
) -> NodeStatus:
    ingress = {"leading": leads, "members": ["a", "b"], "reading": reading, "pulse": pulse, "in_flight": in_flight}
    sinks = {"s0.0>files.0": {"delivered": delivered}}
    boxes = {"s0.0>files.0": {"last": pulse - in_flight}, "s0.0>live.0": {"last": 99}}
    return status(name, ingress=ingress, sinks=sinks, outboxes=boxes)


def test_a_pause_waits_for_all_who_may_lead() -> None:
    follower, leader = state("b"), state("a", leads=True)
    assert Settling()([]) == Settling()([follower]) == "nobody leads the ingress at this moment"
    assert "a may still read" in str(Settling()([state("a", leads=True, reading=True), follower]))
    assert "b may still read" in str(Settling()([leader, state("b", reading=True)])), "it may be the next to lead"
    assert "b may still read" in str(Settling()([leader, status("b", "silent")]))
    assert Settling()([leader, follower]) is None


def test_what_was_read_is_waited_for_and_pulses_without_rows_are_not() -> None:
    settling, follower = Settling(), state("b")
    assert settling([state("a", leads=True, pulse=9, in_flight=3), follower]) == "3 pulses on the way"
    assert settling([state("a", leads=True, pulse=11, in_flight=3), follower]) == "1 pulse on the way"
    assert settling([state("a", leads=True, pulse=12, in_flight=3), follower]) is None, "three empty ones are left"


def test_results_are_waited_for_until_they_are_in_their_sinks() -> None:
    settling = Settling()
    assert settling([state("a", leads=True, delivered=7), state("b", delivered=8)]) == (
        "results are on their way to s0.0>files.0"
    )
    later = state("a", leads=True, pulse=20, in_flight=2, delivered=8)
    assert settling([later, state("b", delivered=8)]) is not None
    assert settling([later, state("b", delivered=9)]) is None, "whoever brought it, and whatever came after it"


def test_a_pause_is_over_when_the_leader_reads() -> None:
    assert pausing.unread([state("a", leads=True, reading=True), state("b")]) is None
    assert pausing.unread([state("a", leads=True)]) == "a does not read the sources yet"
    assert pausing.unread([]) == "nobody leads the ingress at this moment"


def test_waiting_has_an_end() -> None:
    shown: list[str] = []
    with pytest.raises(DeadlinePassed, match="nobody leads"):
        pausing.wait_until(lambda: [], pausing.unread, 0.0, shown.append)
    assert shown == ["nobody leads the ingress at this moment"]
