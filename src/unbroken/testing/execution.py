"""Runs a flow over the input of a test, does to it what the test asks for, and gathers what comes out."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.plan import build_topology
from unbroken.observe.notices import line_of
from unbroken.protocol.combinations import numbered
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Reported
from unbroken.testing.faults import DiskFull, Fault, Partition, SourceFails, refuse_bad
from unbroken.testing.harness.harness import Harness
from unbroken.testing.harness.schedule import FaultSchedule
from unbroken.testing.harness.waiting import Patience, until
from unbroken.testing.injection.disks import mountable
from unbroken.testing.input.files import GO, RunFiles
from unbroken.testing.input.inputs import GivenInput, Input, read_inputs
from unbroken.testing.input.kept_units import KeptUnits
from unbroken.testing.input.script import InputPlan, make_plan
from unbroken.testing.input.substitution import find_flow, substitute, write_flow
from unbroken.testing.result import ResultShape, Run
from unbroken.testing.targets import refuse_unknown
from unbroken.testing.warm.deployment import DeploymentSetup, WarmDeployment
from unbroken.testing.warm.pool import WarmCluster
from unbroken.wording import choices

DEADLINE_S = 120.0
READY_DEADLINE_S = 180.0
"""How long the nodes may take to start their queries; 3 s when they are warm and the machine has nothing else to do."""

ASK_S = 0.5
"""How often the nodes are asked how they are, which shows a flow that cannot go on."""

LOOK_S = 0.02
HOPELESS_S = 5.0
"""How long no replica of a shard may be at work before the run is given up: one may be about to be built again."""

PULSE = "50ms"
"""Shortest time between two cuts. What is in a unit is up to the test, so units come as fast as they are processed."""

LATEST = 12
"""Notices of the history that a failure shows."""


class RunFailed(AssertionError):
    """A run did not come to its end, or not all that it was to do was done; says why and where the logs are."""


def run_with_faults(
    flow: str | os.PathLike[str] | Dataflow,
    input: Mapping[str, GivenInput] | GivenInput,
    faults: Sequence[Fault] = (),
    *,
    cluster: WarmCluster | None = None,
    nodes: int | None = None,
    standbys: int | None = None,
    rows_per_unit: int | None = None,
    settings: Mapping[str, Any] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Run:
    """Run a flow over rows that end, with faults, on real nodes; the results and what happened.

    The flow's own sources and sinks are not touched: rows come from ``input``, and what would have gone to a sink is
    kept and given back. Everything else is the flow as it is.

    Parameters
    ----------
    flow
        The path of the flow's file, Python or YAML, or a ``Dataflow`` at the top level of a file that was imported.
    input
        For each source its rows: a list of dicts, with marks between them if something is to happen there, a
        ``pyarrow.Table`` or a ``pandas.DataFrame``. A flow with one source may be given the rows alone.
    faults
        What is to happen, each with its moment: `Kill`, `Freeze`, `Restart`, `Wipe`, `Partition`, `DiskFull`,
        `SlowDisk`, `ClockStep`, `SourceFails`.
    cluster
        The fixture ``unbroken_cluster``. Without it, processes are started for this run alone.
    nodes, standbys
        How many nodes the flow runs on, if not as many as its settings say.
    rows_per_unit
        How many rows of each source make a unit; by default so many that the longest input makes 20 units. A unit also
        ends at every mark.
    settings
        Settings of the flow that are to be others in this test.
    deadline_s
        How long it may take from the first cut to the last result.

    Raises
    ------
    UnbrokenError
        If the flow, the input or a fault makes no sense.
    RunFailed
        If the run did not come to its end, or a fault could not be done. Logs are kept, and the message says where.
    """
    __tracebackhide__ = True
    checked = refuse_bad(faults)
    path, named, declared = find_flow(flow)
    inputs = read_inputs(declared, input)
    plan = make_plan(inputs, checked, rows_per_unit)
    with _lent(cluster) as lent:
        files = RunFiles(lent.make_run_directory())
        files.make()
        changed = {**_settings(declared, files, nodes, standbys), **(settings or {})}
        substituted = substitute(declared, plan.scripts, changed, files.root)
        tuned = substituted.settings
        cuttable = any(isinstance(fault, Partition) for fault in plan.faults)
        small_disks = any(isinstance(fault, DiskFull) for fault in plan.faults)
        if small_disks and (why := mountable()):
            raise UnbrokenError(f"error: DiskFull cannot be done here: {why}. Leave it out, or run as root on Linux.")
        setup = DeploymentSetup(substituted, files, tuned.nodes, tuned.standbys, cuttable, small_disks)
        topology = build_topology(substituted)
        refuse_unknown(plan.faults, setup.names, dict(topology.segments))
        _refuse_unknown_sources(plan.faults, substituted)
        write_flow(files, path, named, changed, plan.scripts)
        _write_inputs(files, inputs)
        run = _Play(setup, plan, topology, lent, deadline_s).run()
        if cluster is None:
            # Nobody else looks after its directory. That of a run that failed stays: there is something to look at.
            weakref.finalize(run, shutil.rmtree, lent.directory, ignore_errors=True)
        return run


@contextlib.contextmanager
def _lent(cluster: WarmCluster | None) -> Iterator[WarmCluster]:
    """The cluster, or one that lives as long as this."""
    if cluster is not None:
        yield cluster
        return
    with WarmCluster(nodes=0) as own:
        # The test is not done with the run when the processes end.
        own.keep = True
        yield own


def _settings(flow: Dataflow, files: RunFiles, nodes: int | None, standbys: int | None) -> dict[str, Any]:
    """What is other than in the flow's file: outside systems are left out, and pulses do not wait for rows to come."""
    changed: dict[str, Any] = {"pulse_min": PULSE, "pulse_start": PULSE, "metrics_port": None}
    if flow.settings.order_log != "zookeeper":
        changed |= {"order_log": "zookeeper", "order_log_options": {}}
    if flow.settings.snapshots is not None:
        changed["snapshots"] = str(files.root / "snapshots")
    if nodes is not None:
        changed["nodes"] = nodes
    if standbys is not None:
        changed["standbys"] = standbys
    return changed


def _refuse_unknown_sources(faults: Sequence[Fault], flow: Dataflow) -> None:
    for fault in faults:
        if isinstance(fault, SourceFails) and fault.name not in flow.sources:
            raise UnbrokenError(f"{fault}: there is no source {fault.name!r}; {choices(flow.sources, fault.name)}")


def _write_inputs(files: RunFiles, inputs: Mapping[str, Input]) -> None:
    for source, given in inputs.items():
        with pa.OSFile(str(files.input(source)), "wb") as file, pa.ipc.new_file(file, given.table.schema) as out:
            out.write_table(given.table)


class _Play:
    """One run, from the start of its nodes to the last result."""

    def __init__(
        self, setup: DeploymentSetup, plan: InputPlan, topology: Topology, cluster: WarmCluster, deadline_s: float
    ) -> None:
        self._setup = setup
        self._plan = plan
        self._topology = topology
        self._cluster = cluster
        self._deadline_s = deadline_s
        self._arrivals = KeptUnits({name: setup.files.results(name) for name in setup.flow.sinks})
        self._shards = {name: topology.segments[sink.input] for name, sink in setup.flow.sinks.items()}

    def run(self) -> Run:
        __tracebackhide__ = True
        started = time.monotonic()
        setup, files = self._setup, self._setup.files
        with self._cluster.leased(len(setup.names), setup.recipe) as members:
            harness = Harness(WarmDeployment(setup, self._topology, self._cluster, members), ask_s=ASK_S)
            schedule = self._schedule(harness)
            failure = ""
            history: list[Reported] = []
            try:
                harness.start(READY_DEADLINE_S)
                self._play(harness, schedule)
                history = harness.history()
            except UnbrokenError as error:
                failure = str(error)
                history = harness.history()
            finally:
                # Everything is let go of, whatever has happened: sources that are held, what is frozen, links.
                files.end_hold(GO)
                schedule.release()
                harness.close()
            self._arrivals.look()
        run = self._outcome(harness, history, time.monotonic() - started)
        self._cluster.note(run)
        if failure:
            raise RunFailed("\n".join([failure, *self._told(run), run.describe()]))
        run.remove_state()
        return run

    def _schedule(self, harness: Harness[WarmDeployment]) -> FaultSchedule:
        def strike(fault: Fault) -> None:
            struck = harness.strike(fault)
            if not struck.done:
                raise UnbrokenError(f"{fault} could not be done: {struck.what}")

        def obstacle(fault: Fault) -> str | None:
            return harness.shortage() if fault.when_whole else None

        return FaultSchedule(strike, obstacle, self._plan.timed, self._plan.strikes, self._setup.files)

    def _play(self, harness: Harness[WarmDeployment], schedule: FaultSchedule) -> None:
        self._setup.files.end_hold(GO)
        patience = Patience(HOPELESS_S)

        def over() -> bool:
            patience.bear(harness.failure())
            schedule.look()
            if self._arrivals.look():
                schedule.begin()
            return all(self._arrivals.ended(sink, shards) for sink, shards in self._shards.items())

        until(over, self._deadline_s, lambda: self._progress(schedule), LOOK_S)
        pending = schedule.pending()
        if pending:
            what = f"the input was over before {pending[0]} happened"
            raise UnbrokenError(f"{what}; give more rows, or an earlier moment")

    def _progress(self, schedule: FaultSchedule) -> str:
        came = [f"{sink} has {len(units)} units" for sink, units in self._arrivals.units.items()]
        reasons = {each.fault: f": {each.reason}" for each in schedule.put_off()}
        waits = [f"{fault} has not happened{reasons.get(fault, '')}" for fault in schedule.pending()]
        return f"the end of the flow ({', '.join([*came, *waits])})"

    def _outcome(self, harness: Harness[WarmDeployment], history: list[Reported], took_s: float) -> Run:
        flow, files = self._setup.flow, self._setup.files
        return Run(
            shape=ResultShape(flow.name, self._shards, numbered(self._topology)),
            files=files,
            units_by_sink=self._arrivals.units,
            cuts={name: files.cuts(name) for name in flow.sources},
            struck=tuple(struck for struck in harness.struck if struck.done),
            history=tuple(history),
            divergences=tuple(sorted(harness.divergences)),
            took_s=took_s,
            setup=self._setup,
            cluster=self._cluster,
        )

    @staticmethod
    def _told(run: Run) -> list[str]:
        return [f"  history: {line_of(reported)}" for reported in run.history[-LATEST:]]
