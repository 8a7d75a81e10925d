"""Virtual time: the order of actions, and that the seed decides everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unbroken_lab.sim.campaign import Options, run_seed
from unbroken_lab.sim.kernel import Kernel, TooLong

SHORT = Options(length_s=4.0, most_nodes=4)


def test_actions_run_in_the_order_of_their_times_and_of_their_asking() -> None:
    kernel = Kernel(1)
    seen: list[tuple[float, str]] = []
    for delay, name in ((5.0, "late"), (1.0, "first"), (1.0, "second")):
        kernel.after(delay, lambda what: seen.append((kernel.now_ms, what)), name)
    kernel.run(4.0)
    assert seen == [(1.0, "first"), (1.0, "second")]
    assert kernel.now_ms == 4.0
    kernel.run(10.0)
    assert seen[-1] == (5.0, "late")


def test_what_is_due_in_the_past_is_done_at_once() -> None:
    kernel = Kernel(1)
    seen: list[float] = []
    kernel.after(3.0, lambda _: kernel.at(1.0, lambda _: seen.append(kernel.now_ms)))
    kernel.run(3.0)
    assert seen == [3.0]


def test_a_run_that_goes_round_in_circles_is_ended() -> None:
    kernel = Kernel(1)

    def again(_: object) -> None:
        kernel.after(0.0, again)

    again(None)
    with pytest.raises(TooLong):
        kernel.run(1.0, most=100)


def test_purposes_have_randomness_of_their_own() -> None:
    one, other = Kernel(7), Kernel(7)
    one.random("links").random()
    assert one.random("faults").random() == other.random("faults").random()
    assert Kernel(8).random("faults").random() != Kernel(7).random("faults").random()


def test_the_digest_covers_facts_and_their_times() -> None:
    def digest(delay: float, fact: str) -> str:
        kernel = Kernel(1)
        kernel.after(delay, lambda _: kernel.note(fact))
        kernel.run(10.0)
        return kernel.digest()

    assert digest(1.0, "a") == digest(1.0, "a")
    assert len({digest(1.0, "a"), digest(2.0, "a"), digest(1.0, "b")}) == 3


def test_the_same_seed_is_the_same_run() -> None:
    first, second, other = run_seed(3, SHORT), run_seed(3, SHORT), run_seed(4, SHORT)
    assert first.digest == second.digest
    assert first.counts == second.counts
    assert first.digest != other.digest


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    """Also where sets of names are walked through in another order."""
    program = (
        "from unbroken_lab.sim.campaign import Options, run_seed;"
        "print(*[run_seed(s, Options(length_s=4.0, most_nodes=4)).digest for s in (5, 6)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_story_changes_nothing() -> None:
    assert run_seed(3, SHORT).digest == run_seed(3, SHORT, story=True).digest
