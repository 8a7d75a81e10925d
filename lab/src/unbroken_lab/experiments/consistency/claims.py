"""What `unbroken bench consistency` claims: bounds that are kept, and ways to correct the past beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from unbroken_lab.experiments.consistency.figures import BEST
from unbroken_lab.experiments.experiment import ReportClaim, Row, Rows, aimed, none_of, number, ratio_of

WRONG = ("lost", "wrong", "duplicated", "missing_units")

Group = tuple[str, str, float]
"""Policies, way to reconcile, and length of the failure."""


def consistency_claims(rows: Rows, max_delay_ms: float, patience_s: float) -> list[ReportClaim]:
    """What is aimed at, for each length of the failure; failures below ``patience_s`` leave nothing to be corrected."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        key = (str(row["policy"]), str(row["reconcile"]), number(row, "duration_s") or 0.0)
        groups.setdefault(key, []).append(row)
    out = [none_of(rows, *WRONG, claim="stable rows lost, wrong or duplicated, and units missing")]
    for (policy, reconcile, duration_s), found in groups.items():
        where = f"{duration_s:g} s without an input, {policy}, {reconcile}"
        if (policy, reconcile) == BEST:
            delay_ms = together(found, "delay_new_ms", max)
            what, aim = f"delay of new results, {where}", f"below {max_delay_ms:g} ms"
            out.append(aimed(what, aim, delay_ms, lambda value: value < max_delay_ms, " ms"))
        if duration_s < patience_s:
            rows_sent = together(found, "tentative_rows", max)
            out.append(aimed(f"tentative rows, {where}", "0", rows_sent, lambda value: value == 0))
    for what, ratio in _beside(groups, "fork", "redo", patience_s):
        out.append(aimed(what, "at most 1", ratio, lambda value: value <= 1))
    for what, ratio in _beside(groups, "redo", "undo", patience_s):
        out.append(aimed(what, "below 1", ratio, lambda value: value < 1))
    return out


def together(rows: Rows, column: str, combine: Callable[[Sequence[float]], float] = fmean) -> float | None:
    """A figure of runs that were repeated; None if one does not have it: the others alone would look better."""
    values = [number(row, column) for row in rows]
    known = [value for value in values if value is not None]
    return combine(known) if known and len(known) == len(values) else None


def _beside(
    groups: dict[Group, list[Row]], one: str, other: str, longer_than_s: float
) -> Iterator[tuple[str, float | None]]:
    """Reconciliation times of two ways, with the policies and lengths of failures that both were measured with."""
    for (policy, reconcile, duration_s), found in groups.items():
        beside = groups.get((policy, other, duration_s))
        if reconcile == one and beside is not None and duration_s > longer_than_s:
            what = f"time to correct by {one} for each of {other}, {duration_s:g} s without an input, {policy}"
            yield what, ratio_of(together(found, "reconciliation_s"), together(beside, "reconciliation_s"))
