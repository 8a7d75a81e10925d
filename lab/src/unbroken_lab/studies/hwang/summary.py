"""How far the simulation of an experiment is from the formulas.

For an overhead it is also computed what is left of the difference when the formula is given as many identifiers as were
counted. Nothing here is fitted, and what explains a difference is written by hand (docs/hwang.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rich.table import Table

from unbroken_lab.studies.hwang.flow import NodeLine
from unbroken_lab.studies.hwang.measurement import run
from unbroken_lab.studies.hwang.model import Approach, Measure
from unbroken_lab.studies.hwang.report import ComparedPoint, lines_of
from unbroken_lab.studies.hwang.runs import Study
from unbroken_lab.studies.hwang.study import Sweep, experiment_of

NEAR = 0.05
"""The difference from a formula up to which a point agrees with it."""

FORMULA_IDENTIFIERS = {Approach.PASSIVE: 2, Approach.ACTIVE: 3, Approach.UPSTREAM: 2}


@dataclass(frozen=True)
class FormulaDifference:
    """One point beside its formula. ``left`` is what is left of the difference with the identifiers that were counted,
    where it is about bytes."""

    approach: Approach
    measure: Measure
    x: float
    formula: float
    simulated: float
    left: float | None = None

    @property
    def share(self) -> float:
        return self.simulated / self.formula - 1

    def to_json(self, varies: str) -> dict[str, Any]:
        out = {
            "approach": self.approach.value,
            "measure": self.measure.value,
            varies: self.x,
            "formula": round(self.formula, 6),
            "simulated": self.simulated,
            "difference": round(self.share, 4),
        }
        return out if self.left is None else {**out, "left_with_counted_identifiers": round(self.left, 4)}


def differences(study: Study, experiment: Sweep) -> list[FormulaDifference]:
    """Every point that has a formula. A formula that depends on chance is compared by the case that is nearer."""
    return [
        _difference(study, experiment, line)
        for line in lines_of(experiment, study.results(experiment))
        if line.formula is not None and line.result is not None
    ]


def _difference(study: Study, experiment: Sweep, line: ComparedPoint) -> FormulaDifference:
    assert line.formula is not None and line.result is not None
    got, span = line.result.mean, line.formula
    formula = min(max(got, span.low), span.high)
    left = None
    if line.measure is Measure.OVERHEAD:
        sent = study.identifiers(experiment, line.approach)
        setting = next(s for s in experiment.settings() if (s.approach, s.x) == (line.approach, line.x))
        more = (sent - FORMULA_IDENTIFIERS[line.approach]) * setting.parameters.identifier_share
        left = got / (formula + more) - 1
    return FormulaDifference(line.approach, line.measure, line.x, formula, got, left)


def summary(study: Study, handshakes: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """For each experiment: how many points agree with their formulas, and the largest differences."""
    slower = list(handshakes)
    return [_summed(study, experiment, slower) for experiment in study.experiments]


def _summed(study: Study, experiment: Sweep, handshakes: list[dict[str, Any]]) -> dict[str, Any]:
    found = differences(study, experiment)
    out: dict[str, Any] = {"experiment": experiment.name, "figure": experiment.figure, "points": len(found)}
    out["within_5_percent"] = sum(abs(point.share) <= NEAR for point in found)
    out["largest"] = []
    for measure in dict.fromkeys(point.measure for point in found):
        for approach in experiment.approaches:
            points = [point for point in found if (point.measure, point.approach) == (measure, approach)]
            if points:
                worst = max(points, key=lambda point: abs(point.share))
                out["largest"].append(worst.to_json(experiment.varies))
    out["largest"].sort(key=lambda entry: -abs(entry["difference"]))
    if Measure.OVERHEAD in experiment.measures:
        out["identifiers_per_interval"] = {
            approach.value: {
                "formula": FORMULA_IDENTIFIERS[approach],
                "simulated": study.identifiers(experiment, approach),
            }
            for approach in experiment.approaches
        }
        apart = {approach.value: _apart(study, experiment, approach) for approach in FORMULA_IDENTIFIERS}
        out["not_counted_messages_per_unit"] = apart
    if experiment.name == "recovery" and handshakes:
        out["with_handshake"] = handshakes
    out["paper"] = _from_paper(study, experiment)
    return out


def _apart(study: Study, experiment: Sweep, approach: Approach) -> dict[str, float]:
    setting = next(setting for setting in study.plan.settings(experiment) if setting.approach is approach)
    return dict(study.of(experiment, setting)[0].apart)


def _from_paper(study: Study, experiment: Sweep) -> dict[str, Any] | None:
    """The point that is farthest from what the paper states about it alone."""
    stated = [
        (line, line.paper.value, line.result.mean)
        for line in lines_of(experiment, study.results(experiment))
        if line.paper is not None and line.result is not None and line.paper.x is not None and line.paper.value
    ]
    if not stated:
        return None
    line, value, mean = max(stated, key=lambda found: abs(found[2] / found[1] - 1))
    named = {"approach": line.approach.value, "measure": line.measure.value, experiment.varies: line.x}
    return {**named, "stated": value, "simulated": mean, "difference": round(mean / value - 1, 4)}


def handshakes(study: Study, runs: int = 3) -> list[dict[str, Any]]:
    """Recovery at the shortest interval when everything that nodes say to each other takes as long as tuples do."""
    experiment = experiment_of("recovery")
    out: list[dict[str, Any]] = []
    for setting in study.plan.settings(experiment):
        if setting.x != experiment.over[0]:
            continue
        jobs = study.plan.jobs_of(experiment, setting)[:runs]
        prompt = fmean(outcome.full_ms or 0.0 for outcome in study.of(experiment, setting)[:runs])
        slow = fmean(run(replace(job, line=_slowed(job.line))).full_ms or 0.0 for job in jobs)
        named = {"approach": setting.approach.value, "full_recovery_ms": round(slow, 3)}
        out.append({**named, "more_ms": round(slow - prompt, 3)})
    return out


def _slowed(line: NodeLine) -> NodeLine:
    return replace(line, prompt=False)


def summary_table(entries: Iterable[dict[str, Any]]) -> Table:
    """For each experiment, measure and approach the point that is farthest from its formula."""
    table = Table(title="Simulation and formulas")
    for column in ("experiment", "figure", f"within {NEAR:.0%}", "measure", "approach"):
        table.add_column(column)
    for column in ("simulated", "formula", "largest difference", "left with the identifiers counted"):
        table.add_column(column, justify="right")
    for entry in entries:
        agree = f"{entry['within_5_percent']} of {entry['points']}"
        for worst in entry["largest"]:
            left = worst.get("left_with_counted_identifiers")
            table.add_row(
                *(entry["experiment"], entry["figure"], agree, worst["measure"], worst["approach"]),
                *(f"{worst[name]:.4g}" for name in ("simulated", "formula")),
                f"{worst['difference']:+.1%}",
                "" if left is None else f"{left:+.1%}",
            )
        for slow in entry.get("with_handshake", ()):
            table.add_row(
                *(entry["experiment"], entry["figure"], "", "full recovery, handshake takes 5 ms", slow["approach"]),
                *(f"{slow['full_recovery_ms']:.1f} ms", "", f"{slow['more_ms']:+.1f} ms", ""),
            )
    return table
