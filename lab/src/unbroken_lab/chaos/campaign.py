"""Many seeds, one run after the other: a line about each, and a summary."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.chaos.runner import RUN_LOG, ChaosOutcome, run_schedule
from unbroken_lab.chaos.schedule import make_schedule

Tell = Callable[[str], None]


def parse_seeds(text: str) -> list[int]:
    """The seeds that ``"17"``, ``"1-30"`` or ``"1-3,8"`` name, in this order, each once."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UnbrokenError(f"{text!r} names no seeds; write for example 17, 1-30 or 1-3,8")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(seeds))


def run_campaign(seeds: Sequence[int], directory: Path, length_s: float, line: Tell, tell: Tell) -> bool:
    """Run every seed in ``directory``; whether all of them passed.

    ``line`` gets one JSON object per run and one for the campaign, ``tell`` what happens meanwhile, for people.
    The directory of a run that failed stays, with its logs; that of an earlier run of the same seed is replaced.
    """
    outcomes: list[ChaosOutcome] = []
    for seed in seeds:
        schedule = make_schedule(seed, length_s)
        place = directory / f"seed-{seed}"
        _clear(place)
        outcome = run_schedule(schedule, place, tell)
        outcomes.append(outcome)
        line(json.dumps(outcome.to_json()))
        tell(describe(outcome))
    line(json.dumps({"summary": summary(outcomes)}))
    return all(outcome.ok for outcome in outcomes)


def _clear(place: Path) -> None:
    """Remove what an earlier run of the seed has left, and nothing else."""
    if not place.exists():
        return
    if not (place / RUN_LOG).is_file():
        raise UnbrokenError(f"{place} is not what a failed run has left, so it is not replaced. Name another --dir.")
    shutil.rmtree(place)


def describe(outcome: ChaosOutcome) -> str:
    """What a person wants to know about a run; of a failed one also how to repeat it."""
    seed = outcome.schedule.seed
    if outcome.ok:
        return (
            f"seed {seed} passed in {outcome.took_s:.0f} s: {outcome.units} units, longest gap "
            f"{outcome.longest_gap_s:.1f} s, whole {outcome.whole_after_s or 0:.1f} s after the last fault"
        )
    reasons = "".join(f"\n  - {reason}" for reason in outcome.reasons)
    return (
        f"seed {seed} FAILED:{reasons}\n  {outcome.schedule}\n  everything is kept in {outcome.directory}"
        f"\n  to repeat it: {outcome.schedule.command}"
    )


def summary(outcomes: Sequence[ChaosOutcome]) -> dict[str, Any]:
    """The figures of a campaign."""
    struck = Counter(type(fault).__name__ for outcome in outcomes for fault in outcome.schedule.faults)
    recoveries = sorted(seconds for outcome in outcomes for _, seconds in outcome.recoveries)
    return {
        "runs": len(outcomes),
        "passed": sum(outcome.ok for outcome in outcomes),
        "failed_seeds": [outcome.schedule.seed for outcome in outcomes if not outcome.ok],
        "faults": dict(sorted(struck.items())),
        "units": sum(outcome.units for outcome in outcomes),
        "longest_gap_s": round(max((outcome.longest_gap_s for outcome in outcomes), default=0.0), 2),
        "recoveries": len(recoveries),
        "recovery_median_s": recoveries[len(recoveries) // 2] if recoveries else None,
        "recovery_longest_s": recoveries[-1] if recoveries else None,
        "took_s": round(sum(outcome.took_s for outcome in outcomes), 1),
    }
