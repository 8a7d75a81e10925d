"""The experiments of Hwang et al. on the protocol: which runs they need, and what becomes of the outcomes.

A run is as short as it can be: everything repeats with every interval, so whole intervals from a random moment on give
the bytes, and a failure at a random moment the times. What differs between runs is those moments, and the confidence
intervals say how much they matter. Runs that several experiments need are done once, and a run is the same
whichever experiments are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from math import sqrt
from multiprocessing import get_context
from statistics import NormalDist, fmean, stdev

from unbroken.errors import UnbrokenError
from unbroken_lab.studies.hwang.flow import Grain, NodeLine
from unbroken_lab.studies.hwang.measurement import LineFigures, LineRun, run
from unbroken_lab.studies.hwang.model import Approach, Measure
from unbroken_lab.studies.hwang.study import MeasuredMean, Sweep, SweepPoint

SECONDS = 0.2
"""How long bytes are counted in a run, in simulated time."""

COUNTED = ("boxes", "selectivity")
"""What varies where only bytes are counted: there a unit is a whole interval."""

TIMED = {Measure.PARTIAL_RECOVERY, Measure.FULL_RECOVERY, Measure.DELAY}
"""What a failure is needed for."""

DIGITS = 6

Tell = Callable[[str], None]


@dataclass(frozen=True)
class SweepPlan:
    """How the experiments are run: ``runs`` of each point, of which run k has the seed ``seed + k``."""

    runs: int | None = None
    seed: int = 1
    seconds: float = SECONDS
    jobs: int = 1

    def settings(self, experiment: Sweep) -> list[SweepPoint]:
        """The points of an experiment. The course of a single failure stays a single one."""
        if self.runs is not None and experiment.runs > 1:
            experiment = replace(experiment, runs=self.runs)
        return experiment.settings(self.seed)

    def jobs_of(self, experiment: Sweep, setting: SweepPoint) -> list[LineRun]:
        counted = experiment.varies in COUNTED
        grain = Grain.coarse(setting.parameters) if counted else Grain.fine(setting.parameters)
        line = NodeLine(setting.approach, setting.parameters, setting.network, grain)
        fails = bool(TIMED & set(experiment.measures))
        return [LineRun(line, seed, self.seconds * 1000, fails) for seed in setting.seeds]


@dataclass
class Study:
    """The outcomes of all runs of some experiments."""

    plan: SweepPlan
    experiments: Sequence[Sweep]
    outcomes: dict[LineRun, LineFigures] = field(default_factory=dict)

    def run(self, tell: Tell = lambda _: None) -> None:
        """Do all runs that are needed, in several processes if the plan says so."""
        asked = dict.fromkeys(job for experiment in self.experiments for job in self._jobs(experiment))
        # A run with a failure counts the same bytes before it.
        needed = [job for job in asked if job.fails or replace(job, fails=True) not in asked]
        step = max(1, len(needed) // 20)
        for place, (job, outcome) in enumerate(self._outcomes(needed), start=1):
            self.outcomes[job] = outcome
            if place % step == 0 or place == len(needed):
                tell(f"{place} of {len(needed)} runs are done")

    def results(self, experiment: Sweep) -> list[MeasuredMean]:
        """The means of every point and measure, with their confidence intervals."""
        bandwidths = self._bandwidths(experiment) if Measure.BANDWIDTH in experiment.measures else {}
        out: list[MeasuredMean] = []
        for measure in experiment.measures:
            for setting in self.plan.settings(experiment):
                found = self.of(experiment, setting)
                if measure is Measure.DELAY:
                    out += _course(setting, found[0])
                    continue
                if measure is Measure.BANDWIDTH:
                    out.append(_mean(setting, measure, bandwidths[setting.approach, setting.x]))
                else:
                    out.append(_mean(setting, measure, [_value(outcome, measure) for outcome in found]))
        return out

    def of(self, experiment: Sweep, setting: SweepPoint) -> list[LineFigures]:
        """The outcomes of the runs of one point."""
        jobs = self.plan.jobs_of(experiment, setting)
        return [self.outcomes.get(replace(job, fails=True)) or self.outcomes[job] for job in jobs]

    def identifiers(self, experiment: Sweep, approach: Approach) -> float:
        """How many identifiers a stream between two nodes costs in an interval."""
        points = [setting for setting in self.plan.settings(experiment) if setting.approach is approach]
        return fmean(outcome.identifiers for setting in points for outcome in self.of(experiment, setting))

    def _bandwidths(self, experiment: Sweep) -> Mapping[tuple[Approach, float], list[float]]:
        """The bytes of all rows of a square, relative to those of upstream backup in the smallest one."""
        settings = self.plan.settings(experiment)
        of_row = {(s.approach, s.x): [o.bytes_per_ms for o in self.of(experiment, s)] for s in settings}
        whole = {(s.approach, s.x): [b * s.network.side for b in of_row[s.approach, s.x]] for s in settings}
        one = fmean(whole[Approach.UPSTREAM, experiment.over[0]])
        return {at: [value / one for value in values] for at, values in whole.items()}

    def _jobs(self, experiment: Sweep) -> list[LineRun]:
        settings = self.plan.settings(experiment)
        return [job for setting in settings for job in self.plan.jobs_of(experiment, setting)]

    def _outcomes(self, jobs: list[LineRun]) -> Iterator[tuple[LineRun, LineFigures]]:
        if self.plan.jobs <= 1 or len(jobs) < 2:
            yield from ((job, run(job)) for job in jobs)
            return
        workers = min(self.plan.jobs, len(jobs))
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield from zip(jobs, pool.map(run, jobs, chunksize=4), strict=True)


def _value(outcome: LineFigures, measure: Measure) -> float:
    values = {
        Measure.OVERHEAD: outcome.overhead,
        Measure.PARTIAL_RECOVERY: outcome.partial_ms,
        Measure.FULL_RECOVERY: outcome.full_ms,
    }
    found = values.get(measure)
    if found is None:
        raise UnbrokenError(f"a run has no value for {measure.value}")
    return found


def _course(setting: SweepPoint, outcome: LineFigures) -> list[MeasuredMean]:
    """A result for each unit of tuples: when it arrived, and how late."""
    points = [(round(at, DIGITS), round(delay, DIGITS)) for at, delay in outcome.course]
    return [MeasuredMean(setting.approach, Measure.DELAY, at, delay, delay, delay, 1) for at, delay in points]


def _mean(setting: SweepPoint, measure: Measure, values: Sequence[float]) -> MeasuredMean:
    mean = fmean(values)
    half = _quantile(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    mean, low, high = (round(value, DIGITS) for value in (mean, mean - half, mean + half))
    return MeasuredMean(setting.approach, measure, setting.x, mean, low, high, len(values))


def _quantile(freedom: int) -> float:
    """Student's t for 95 %, by its expansion around the normal distribution: to 1 % from four degrees of freedom on."""
    z = NormalDist().inv_cdf(0.975)
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + terms[0] / freedom + terms[1] / (freedom * freedom) + terms[2] / (freedom * freedom * freedom)
