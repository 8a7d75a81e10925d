"""Handing a job over never waits."""

from __future__ import annotations

import threading

from unbroken.node.jobs import Jobs


def test_a_full_queue_is_reported_and_not_waited_for() -> None:
    told: list[str] = []
    jobs: Jobs[int] = Jobs(2, lambda: told.append("full"))

    def hand_over() -> None:
        for number in range(4):
            jobs.put(number)

    loop = threading.Thread(target=hand_over, daemon=True)
    loop.start()
    loop.join(30)
    assert not loop.is_alive()
    assert told == ["full", "full"]
    assert [jobs.get(timeout=30), jobs.get(timeout=30)] == [0, 1]
    jobs.put(7)
    assert jobs.get(timeout=30) == 7
