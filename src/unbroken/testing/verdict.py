"""Whether a run with faults gave what it had to give without: the comparison, and the words for what differs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken.observe.status.summary import divergence_text
from unbroken.testing.comparison import Row, compare, latest, rows_of
from unbroken.testing.reference import ReferenceJob, read_result
from unbroken.testing.result import Run
from unbroken.testing.warm.deployment import DeploymentSetup
from unbroken.testing.warm.orders import IDLE, ReferenceTask
from unbroken.testing.warm.pool import WarmCluster

REFERENCE_DEADLINE_S = 300.0

Keys = Sequence[str] | Mapping[str, Sequence[str]]

ByUnit = dict[int, list[Row]]


class Different(AssertionError):
    """The results of a run are not those of a run without faults; says which rows, and in which units."""


def assert_same_as_fault_free(run: Run, *, by: str | None = None, keys: Keys | None = None) -> None:
    """Fail unless every sink got the rows that it gets when nothing goes wrong, each once.

    What it gets then is computed by plain Spark in one session, from the same rows cut into the same units. Numbers
    with a fraction may differ in the last bits, as sums do whose rows came in another order.

    Parameters
    ----------
    by
        ``"unit"``: every unit has to have its rows, no more and no fewer. ``"rows"``: it does not matter in which unit
        a row came. The former is meant unless leaders or event times decide what is in a unit, which may be otherwise
        in every run.
    keys
        Compare only the last row of each key: what is known in the end in a flow whose results are updates. Needed
        where it depends on units which updates there are, and units may be otherwise in every run. One list of columns
        for all sinks, or one for each sink that is to be compared.

    Raises
    ------
    Different
        With the rows that differ, what was done to the flow, and where its logs are. A flow that may deliver units
        twice (``guarantee="at-least-once"``) is allowed to, one that may lose some (``"at-most-once"``) as well.
    """
    __tracebackhide__ = True
    setup = _setup_of(run)
    mode = _mode(run, setup, by, keys)
    complaints = [f"replicas have diverged: {divergence_text(each)}" for each in run.divergences]
    expected = fault_free(run)
    for sink in run.shape.shards:
        if isinstance(keys, Mapping) and sink not in keys:
            continue
        wanted, found = _allowed(run, setup, sink, expected[sink])
        columns = keys.get(sink) if isinstance(keys, Mapping) else keys
        difference = compare(_as(mode, wanted, columns), _as(mode, found, columns))
        if difference:
            first, *more = difference.lines()
            complaints += [f"sink {sink} differs from the fault-free run: {first}", *(f"  {line}" for line in more)]
    if complaints:
        raise Different("\n".join([*complaints, run.describe()]))


def fault_free(run: Run) -> dict[str, ByUnit]:
    """The rows that every sink of a run had to get, by unit, as plain Spark computes them."""
    setup = _setup_of(run)
    if run.reference is None:
        out = run.files.root / "reference"
        ReferenceJob(run.cuts, _cut_times(run)).write(out)
        with _lent(run.cluster) as cluster:
            _compute(setup, cluster, out)
        run.reference = {
            sink: {unit: rows_of(table) for unit, table in read_result(out, sink).items()} for sink in run.shape.shards
        }
    return run.reference


def _compute(setup: DeploymentSetup, cluster: WarmCluster, out: Path) -> None:
    log = setup.files.logs / "reference.log"
    task = ReferenceTask(str(setup.files.root), str(out))
    with cluster.leased(1, setup.recipe) as (member,):
        member.order(setup.order(task, log))
        done = member.wait(IDLE, deadline_s=REFERENCE_DEADLINE_S)
        if not done or member.failure:
            why = member.failure or f"it did not end within {REFERENCE_DEADLINE_S:g} s"
            raise UnbrokenError(f"the fault-free run failed: {why}; see {log} and {member.log}")


@contextlib.contextmanager
def _lent(cluster: WarmCluster | None) -> Iterator[WarmCluster]:
    if cluster is not None and not cluster.closed:
        yield cluster
        return
    with WarmCluster(nodes=0) as own:
        yield own


def _setup_of(run: Run) -> DeploymentSetup:
    if run.setup is None or not run.files.flow.is_file():
        raise UnbrokenError("the directory of this run is gone; compare its results in the test that has made them")
    return run.setup


def _cut_times(run: Run) -> list[int]:
    """When each unit was cut, as the results say; of one that was lost, when the one before it was."""
    known = {unit.pulse: unit.cut_ms for sink in run.shape.shards for unit in run.units(sink)}
    out: list[int] = []
    for number in range(1, max(map(len, run.cuts.values()), default=0) + 1):
        out.append(known.get(number, out[-1] if out else 0))
    return out


def _mode(run: Run, setup: DeploymentSetup, by: str | None, keys: Keys | None) -> str:
    """How results are compared: by 'unit', by 'rows', or by 'keys'."""
    if by not in (None, "unit", "rows"):
        raise UnbrokenError(f"by={by!r}: results are compared by 'unit' or by 'rows'")
    if keys is not None:
        if by is not None:
            raise UnbrokenError("give either by= or keys=, not both")
        return "keys"
    if by is not None or run.shape.by_cut:
        return by or "unit"
    flow = setup.flow
    updates = [name for name, sink in flow.sinks.items() if flow.segments[sink.input].output_mode == "update"]
    if updates:
        raise UnbrokenError(
            f"sink {updates[0]} gets updates, and in flow {flow.name} units are cut otherwise in every run, so there "
            "are other updates in every run. Compare what is known in the end, with keys=[...] of its rows."
        )
    return "rows"


def _allowed(run: Run, setup: DeploymentSetup, sink: str, expected: ByUnit) -> tuple[ByUnit, ByUnit]:
    """The rows that are wanted and those that were found, but for what the flow's guarantee allows."""
    guarantee = setup.flow.settings.guarantee
    found: ByUnit = {}
    taken: set[tuple[int, int]] = set()
    for unit in run.units(sink):
        if guarantee == "at-least-once" and (unit.shard, unit.number) in taken:
            continue
        taken.add((unit.shard, unit.number))
        found.setdefault(unit.number, []).extend(rows_of(unit.table))
    if guarantee == "at-most-once":
        lost = {each.number for each in run.lost if each.sink == sink}
        expected = {number: rows for number, rows in expected.items() if number not in lost}
        found = {number: rows for number, rows in found.items() if number not in lost}
    return expected, found


def _as(mode: str, rows: ByUnit, keys: Any) -> ByUnit:
    """The rows in the form in which they are compared."""
    if mode == "unit":
        return rows
    everything = [row for number in sorted(rows) for row in rows[number]]
    return {0: latest(everything, keys) if mode == "keys" else everything}
