"""How far the simulation of an experiment is from the formulas, and why.

The reasons are those of the protocol, told by what was counted: an overhead is explained by how many identifiers it
sends in an interval, and what is left when the formula is given as many. Times are explained by what the formulas leave
out. Nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from unbroken_lab.studies.hwang import Approach, Measure
from unbroken_lab.studies.hwang_flow import Line
from unbroken_lab.studies.hwang_measure import run
from unbroken_lab.studies.hwang_report import Line as Compared
from unbroken_lab.studies.hwang_report import lines_of
from unbroken_lab.studies.hwang_run import Study
from unbroken_lab.studies.hwang_study import Experiment, experiment_of

NOTES = {
    "boxes": "the operators of a segment are one query, and between two micro-batches nothing waits between them: a"
    " copy of the state costs the same with 25 operators as with one, where the paper's has a queue for each operator",
    "selectivity": "what passive standby copies shrinks with the results, as in the paper; beyond that the paper has"
    " the queues of 25 operators in it",
    "distribution": "the paper's times fall below twice the latency of a link (7 ms with 100 nodes), which no tuple"
    " that is sent again can beat, and grow more on few nodes than links and processing account for",
}
"""What is to be said about an experiment beyond its formulas."""

NEAR = 0.05
"""The difference from a formula up to which a point agrees with it."""

FORMULA_IDENTIFIERS = {Approach.PASSIVE: 2, Approach.ACTIVE: 3, Approach.UPSTREAM: 2}

WHY = {
    (Approach.PASSIVE, Measure.OVERHEAD): "a copy is pulled: it is offered, asked for and sent with its place, and"
    " both the primary and the copy acknowledge their input",
    (Approach.ACTIVE, Measure.OVERHEAD): "both replicas acknowledge to both replicas of the node before, instead of"
    " the one to one of them, which tells the other",
    (Approach.UPSTREAM, Measure.OVERHEAD): "one acknowledgement of level 0 and one of level 1, as in the formula",
    (Approach.PASSIVE, Measure.FULL_RECOVERY): "a copy is as old as it took on its way, units are passed on as a whole,"
    " and tuples under way to the failed node have to come again",
    (Approach.ACTIVE, Measure.FULL_RECOVERY): "the acknowledgements that were under way (2 d lambda tuples) reach the"
    " backup before the failure is detected, so it has fewer duplicates to send",
    (Approach.UPSTREAM, Measure.FULL_RECOVERY): "tuples under way to the failed node have to come again, and units are"
    " passed on as a whole",
    (Approach.PASSIVE, Measure.BANDWIDTH): "identifiers, as in the overhead",
    (Approach.ACTIVE, Measure.BANDWIDTH): "identifiers, as in the overhead",
    (Approach.UPSTREAM, Measure.BANDWIDTH): "whole bytes",
}
"""What makes the difference, by approach and measure; for partial recovery it is the same as for full recovery."""

WHERE_WIDE = "; where a link has many tuples and processing is as slow as the link, a unit is held up at every stage"


@dataclass(frozen=True)
class Difference:
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


def differences(study: Study, experiment: Experiment) -> list[Difference]:
    """Every point that has a formula. A formula that depends on chance is compared by the case that is nearer."""
    return [
        _difference(study, experiment, line)
        for line in lines_of(experiment, study.results(experiment))
        if line.formula is not None and line.result is not None
    ]


def _difference(study: Study, experiment: Experiment, line: Compared) -> Difference:
    assert line.formula is not None and line.result is not None
    got, span = line.result.mean, line.formula
    formula = min(max(got, span.low), span.high)
    left = None
    if line.measure is Measure.OVERHEAD:
        sent = study.identifiers(experiment, line.approach)
        setting = next(s for s in experiment.settings() if (s.approach, s.x) == (line.approach, line.x))
        more = (sent - FORMULA_IDENTIFIERS[line.approach]) * setting.parameters.identifier_share
        left = got / (formula + more) - 1
    return Difference(line.approach, line.measure, line.x, formula, got, left)


def summary(study: Study, handshakes: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """For each experiment: how many points agree with their formulas, the largest difference, and what explains it."""
    slower = list(handshakes)
    return [_summed(study, experiment, slower) for experiment in study.experiments]


def _summed(study: Study, experiment: Experiment, handshakes: list[dict[str, Any]]) -> dict[str, Any]:
    found = differences(study, experiment)
    out: dict[str, Any] = {"experiment": experiment.name, "figure": experiment.figure, "points": len(found)}
    out["within_5_percent"] = sum(abs(point.share) <= NEAR for point in found)
    out["largest"] = []
    for measure in dict.fromkeys(point.measure for point in found):
        for approach in experiment.approaches:
            points = [point for point in found if (point.measure, point.approach) == (measure, approach)]
            if points:
                worst = max(points, key=lambda point: abs(point.share))
                out["largest"].append({**worst.to_json(experiment.varies), "why": _why(experiment, worst)})
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
    if experiment.name in NOTES:
        out["note"] = NOTES[experiment.name]
    out["paper"] = _from_paper(study, experiment)
    return out


def _apart(study: Study, experiment: Experiment, approach: Approach) -> dict[str, float]:
    setting = next(setting for setting in study.plan.settings(experiment) if setting.approach is approach)
    return dict(study.of(experiment, setting)[0].apart)


def _why(experiment: Experiment, point: Difference) -> str:
    timed = point.measure in (Measure.PARTIAL_RECOVERY, Measure.FULL_RECOVERY)
    why = WHY[point.approach, Measure.FULL_RECOVERY if timed else point.measure]
    return why + WHERE_WIDE if timed and experiment.varies == "nodes" else why


def _from_paper(study: Study, experiment: Experiment) -> dict[str, Any] | None:
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


def _slowed(line: Line) -> Line:
    return replace(line, prompt=False)


def spoken(entries: Iterable[dict[str, Any]]) -> list[str]:
    """The summary as sentences."""
    out: list[str] = []
    for entry in entries:
        agree = f"{entry['within_5_percent']} of {entry['points']} points within 5 % of their formulas"
        out.append(f"{entry['experiment']} ({entry['figure']}): {agree}")
        for worst in entry["largest"]:
            of = f"{worst['approach']}, {worst['measure']}"
            values = f"{worst['simulated']:.4g} simulated, {worst['formula']:.4g} by formula"
            left = worst.get("left_with_counted_identifiers")
            rest = "" if left is None else f" ({left:+.1%} with the identifiers that were counted)"
            out.append(f"  {of}: at most {worst['difference']:+.1%}, {values}{rest}: {worst['why']}")
        out += [f"  note: {entry['note']}"] if "note" in entry else []
        for slow in entry.get("with_handshake", ()):
            out.append(
                f"  {slow['approach']} with a handshake that takes its time: {slow['full_recovery_ms']:.1f} ms,"
                f" {slow['more_ms']:+.1f} ms"
            )
    return out
