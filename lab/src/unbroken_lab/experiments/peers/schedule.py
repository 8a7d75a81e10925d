"""What happens when in a run of `unbroken bench peers`, and one system being run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.observation.observed import Say, wait_until
from unbroken_lab.experiments.parameters.events import Load
from unbroken_lab.experiments.peers.observation import Observation
from unbroken_lab.experiments.peers.peer import Peer, now_ms
from unbroken_lab.experiments.peers.usage import Meter

START_S = 20.0
"""Time for a system to start before the first event is due."""

FIRST_S = 180.0
LAST_S = 120.0
SILENCE_S = 40.0
"""A system that still owes results and has given none for so long will not give them."""

LOOK_S = 0.05

Make = Callable[[Observation, Path, Say], Peer]


@dataclass(frozen=True)
class PeerSchedule:
    """Seconds since the first event was due: warm from ``warm_s`` on, killed at ``kill_s``, the last one at ``end_s``.

    The first seconds of every system are slow, until Java has compiled what it runs.
    """

    warm_s: float
    kill_s: float
    end_s: float

    @classmethod
    def of(cls, seconds: float) -> PeerSchedule:
        return cls(0.3 * seconds, 0.5 * seconds, seconds)


@dataclass(frozen=True)
class PeerRun:
    """A system that was run: what was seen of it, when it was killed, and what it used in the measured time."""

    observation: Observation
    warm_ms: float
    killed_ms: float
    killed: str
    cpu_s: float
    measured_s: float


def run_system(make: Make, rate: int, schedule: PeerSchedule, say: Say) -> PeerRun:
    """Start a system, let it become warm, kill a process of it, and wait for the last result."""
    with tempfile.TemporaryDirectory() as directory:
        load = Load(rate, int(rate * schedule.end_s), 0.0)
        observation = Observation(load)
        peer = make(observation, Path(directory), say)
        try:
            peer.prepare()
            # The events wait for the system to be there, as far as that can be known before.
            observation.load = Load(load.rate, load.rows, float(int(now_ms() + START_S * 1000)))
            peer.start()
            return _measure(peer, observation, schedule)
        finally:
            peer.stop()


def _measure(peer: Peer, observation: Observation, schedule: PeerSchedule) -> PeerRun:
    load = observation.load
    _await(peer, lambda: observation.last_ms() is not None, FIRST_S, "the first result")
    # A system that took longer to start than planned has as much time to become warm as the others.
    late_ms = max(0.0, (observation.last_ms() or 0.0) - load.began_ms - 1000 * schedule.warm_s / 2)
    warm_ms = load.began_ms + 1000 * schedule.warm_s + late_ms
    kill_ms = load.began_ms + 1000 * schedule.kill_s + late_ms
    if kill_ms >= load.ended_ms:
        raise UnbrokenError("the first result came too late; measure for longer (--seconds), or on a quieter machine")
    _sleep_until(peer, warm_ms)
    meter, metered = Meter(), time.monotonic()
    meter.start()
    _sleep_until(peer, kill_ms)
    victim = peer.aim()
    killed_ms = now_ms()
    peer.kill()
    peer.say(f"{peer.title}: killed {victim}")
    _sleep_until(peer, load.ended_ms)
    cpu_s, measured_s = meter.stop(), time.monotonic() - metered
    _await_last(peer, observation)
    return PeerRun(observation, warm_ms, killed_ms, victim, cpu_s, measured_s)


def _await_last(peer: Peer, observation: Observation) -> None:
    """Until everything has been counted, or nothing comes any more: then it is lost."""
    deadline = time.monotonic() + LAST_S
    while not observation.complete() and time.monotonic() < deadline:
        peer.check()
        if now_ms() - max(observation.last_ms() or 0.0, observation.load.ended_ms) > SILENCE_S * 1000:
            return
        time.sleep(LOOK_S)


def _await(peer: Peer, done: Callable[[], bool], deadline_s: float, what: str) -> None:
    def look() -> bool:
        peer.check()
        return done()

    wait_until(look, deadline_s, f"{what} of {peer.title}")


def _sleep_until(peer: Peer, at_ms: float) -> None:
    while (left := (at_ms - now_ms()) / 1000) > 0:
        peer.check()
        time.sleep(min(LOOK_S, left))
