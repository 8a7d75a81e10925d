"""Runs a flow over the input of a test, does to it what the test asks for, and gathers what comes out."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.plan import build_topology
from unbroken.protocol.values.layout import Topology
from unbroken.testing.deployment import Deployment, Setup
from unbroken.testing.faults import Fault, Partition, SourceFails, refuse_bad
from unbroken.testing.files import GO, RunFiles
from unbroken.testing.inputs import Given, Input, read_inputs
from unbroken.testing.kept import Arrivals
from unbroken.testing.pool import WarmCluster
from unbroken.testing.result import Run, Shape
from unbroken.testing.script import Plan, make_plan
from unbroken.testing.striking import Striker
from unbroken.testing.substitution import find_flow, substitute, write_flow
from unbroken.testing.targets import refuse_unknown
from unbroken.wording import choices

DEADLINE_S = 120.0
READY_DEADLINE_S = 180.0
"""How long the nodes may take to start their queries; 3 s when they are warm and the machine has nothing else to do."""

LOOK_S = 0.02
HOPELESS_S = 5.0
"""How long no replica of a shard may be at work before the run is given up: one may be about to be built again."""

PULSE = "50ms"
"""Shortest time between two cuts. What is in a unit is up to the test, so units come as fast as they are processed."""

LATEST = 12
"""Sentences of the history that a failure tells."""


class RunFailed(AssertionError):
    """A run did not come to its end, or not all that it was to do was done; says why and where the logs are."""


def run_with_faults(
    flow: str | os.PathLike[str] | Dataflow,
    input: Mapping[str, Given] | Given,
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
        What is to happen: `Kill`, `Freeze`, `Partition`, `SourceFails`, each with its moment.
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
        setup = Setup(substituted, files, tuned.nodes, tuned.standbys, cuttable)
        topology = build_topology(substituted)
        refuse_unknown(plan.faults, setup.names, dict(topology.segments))
        _refuse_unknown_sources(plan.faults, substituted)
        write_flow(files, path, named, changed, plan.scripts)
        _write_inputs(files, inputs)
        run = _Running(setup, plan, topology, lent, deadline_s).run()
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


class _Running:
    """One run, from the start of its nodes to the last result."""

    def __init__(self, setup: Setup, plan: Plan, topology: Topology, cluster: WarmCluster, deadline_s: float) -> None:
        self._setup = setup
        self._plan = plan
        self._topology = topology
        self._cluster = cluster
        self._deadline_s = deadline_s
        self._arrivals = Arrivals({name: setup.files.results(name) for name in setup.flow.sinks})
        self._shards = {name: topology.segments[sink.input] for name, sink in setup.flow.sinks.items()}
        self._hopeless: float | None = None

    def run(self) -> Run:
        __tracebackhide__ = True
        started = time.monotonic()
        setup = self._setup
        with self._cluster.leased(len(setup.names), setup.recipe) as members:
            deployment = Deployment(setup, self._cluster, members)
            striker = Striker(self._plan, deployment, setup.files, self._topology)
            failure = ""
            history: list[str] = []
            try:
                deployment.start()
                self._play(deployment, striker)
                history = deployment.history()
            except UnbrokenError as error:
                failure = str(error)
                history = deployment.history()
            finally:
                self._end(deployment, striker)
            self._arrivals.look()
        run = self._outcome(striker, deployment, history, time.monotonic() - started)
        self._cluster.note(run)
        if failure:
            raise RunFailed("\n".join([failure, *self._told(run), run.describe()]))
        run.remove_state()
        return run

    def _play(self, deployment: Deployment, striker: Striker) -> None:
        self._until(deployment.ready, READY_DEADLINE_S, deployment, lambda: _readiness(deployment))
        self._setup.files.end_hold(GO)

        def over() -> bool:
            striker.look()
            if self._arrivals.look() and striker.began is None:
                striker.began = time.monotonic()
            return all(self._arrivals.ended(sink, shards) for sink, shards in self._shards.items())

        self._until(over, self._deadline_s, deployment, lambda: self._progress(striker))
        pending = striker.pending()
        if pending:
            what = f"the input was over before {pending[0]} happened"
            raise UnbrokenError(f"{what}; give more rows, or an earlier moment")

    def _until(
        self, condition: Callable[[], bool], deadline_s: float, deployment: Deployment, what: Callable[[], str]
    ) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            now = time.monotonic()
            failure = deployment.failure()
            if failure is None:
                self._hopeless = None
            elif self._hopeless is None:
                self._hopeless = now
            elif now - self._hopeless > HOPELESS_S:
                raise UnbrokenError(f"the flow cannot go on: {failure}")
            if now > end:
                raise UnbrokenError(f"not within {deadline_s:g} s: {what()}")
            time.sleep(LOOK_S)

    def _end(self, deployment: Deployment, striker: Striker) -> None:
        """Let go of everything, whatever has happened: sources that are held, processes that are frozen, links."""
        self._setup.files.end_hold(GO)
        striker.settle()
        deployment.close()

    def _progress(self, striker: Striker) -> str:
        came = [f"{sink} has {len(units)} units" for sink, units in self._arrivals.units.items()]
        waits = [f"{fault} has not happened" for fault in striker.pending()]
        return f"the end of the flow ({', '.join([*came, *waits])})"

    def _outcome(self, striker: Striker, deployment: Deployment, history: list[str], took_s: float) -> Run:
        flow, files = self._setup.flow, self._setup.files
        by_cut = not self._topology.led and not self._topology.bucketed
        return Run(
            shape=Shape(flow.name, self._shards, by_cut),
            files=files,
            units_by_sink=self._arrivals.units,
            cuts={name: files.cuts(name) for name in flow.sources},
            struck=tuple(striker.struck),
            history=tuple(history),
            divergences=tuple(sorted(deployment.divergences)),
            took_s=took_s,
            setup=self._setup,
            cluster=self._cluster,
        )

    @staticmethod
    def _told(run: Run) -> list[str]:
        return [f"  history: {sentence}" for sentence in run.history[-LATEST:]]


def _readiness(deployment: Deployment) -> str:
    states = {str(state["node"]): str(state.get("state")) for state in deployment.states}
    return "all nodes ready; " + ", ".join(f"{name} is {states.get(name, 'not there')}" for name in deployment.names)
