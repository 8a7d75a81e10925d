"""Advice for a real flow: what each way to keep its segments available costs, and how long it takes to go on.

A flow is simulated with the protocol that runs it, on as many nodes as are asked for, with costs that were measured.
Bytes are counted in a quiet time and by purpose, as the nodes' own counters do; then a node that works for the segments
is killed, in several runs at different moments. The figures are those of `unbroken bench strategies`, by the same
functions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.strategy import Ha
from unbroken_lab.experiments.observation.usage import PURPOSES
from unbroken_lab.experiments.recovery.strategy_figures import UNDETECTED, Recovery, first_notice, gaps
from unbroken_lab.sim.exposure import Exposure, exposure_of
from unbroken_lab.sim.links import LinkModel
from unbroken_lab.sim.world import Setup
from unbroken_lab.sim.zookeeper import StoreModel
from unbroken_lab.studies.calibration.calibration import Calibration
from unbroken_lab.studies.plan.prediction import QUIET_MS, PredictedRun, Prediction, Question, StrategyComparison
from unbroken_lab.studies.plan.variants import Variant, chosen_segments, variant
from unbroken_lab.studies.plan.world import PlanWorld

Say = Callable[[str], None]

WARM_MS = 12_000.0
AFTER_MS = 20_000.0
"""How long a run goes on before anything is counted, and after the kill at least."""

LONGEST_MS = 300_000.0
"""After the kill; what has not come back by then is said not to come back."""

LOOK_MS = 100.0
RESTART_MS = 500.0
"""From the kill of a process to its start, where somebody starts it again (``ha='none'``)."""

JITTER = 0.2
GOLDEN = 0.618034
"""Multiples of it, without their whole part, are spread evenly, however many there are."""

MOST_EVENTS = 2_000_000

BUSY_SPREAD = 0.4
"""Micro-batches of a machine that is alone do not differ so much."""


def make_plan(flow: Dataflow, calibration: Calibration, question: Question, say: Say) -> StrategyComparison:
    """Simulate the flow with every strategy that it can use."""
    calibration.refuse_other(flow.name, set(flow.sources), set(flow.segments))
    segments = chosen_segments(flow, question.segments)
    reaches = {name: costs.reach for name, costs in calibration.segments.items()}
    predictions = []
    for ha in Ha:
        found = variant(flow, ha, segments, question.nodes, question.interval, reaches)
        if found.topology is None:
            predictions.append(Prediction(ha, segments, found.problems))
            continue
        say(f"{flow.name}: simulating ha={ha.value!r}")
        predictions.append(predict(flow, calibration, question, found))
    if not any(prediction.possible for prediction in predictions):
        raise UnbrokenError(f"flow {flow.name} cannot use any strategy on {question.nodes} nodes")
    return StrategyComparison(
        flow.name, question, calibration, tuple(predictions), segments, tuple(_notes(flow, calibration))
    )


def _notes(flow: Dataflow, calibration: Calibration) -> list[str]:
    out = [
        f"the rows of source {name} were made up: give it rows for better numbers"
        for name, costs in calibration.sources.items()
        if costs.rows == "made up"
    ]
    busy = [name for name, costs in calibration.segments.items() if costs.spread >= BUSY_SPREAD]
    if busy:
        names = ", ".join(busy)
        out.append(f"micro-batches of {names} took very different times: was the machine busy? Measure again alone")
    if flow.settings.snapshots is not None:
        out.append("snapshots are not simulated: they add to the bytes, and help against losses that nothing covers")
    if any(segment.ordering == "bucket" for segment in flow.segments.values()):
        out.append("units that are cut by event time are simulated as if the sources' pulses cut them")
    return out


# --- one strategy -------------------------------------------------------------------------------------------


def predict(flow: Dataflow, calibration: Calibration, question: Question, found: Variant) -> Prediction:
    """What one strategy comes to: ``question.runs`` runs, in each of which another of its hosts is killed in turn."""
    setup = setup_of(flow, calibration, question, found)
    clients = frozenset(name for name, sink in flow.sinks.items() if sink.connector.client)
    runs: list[PredictedRun] = []
    exposure: Exposure | None = None
    hosts: tuple[NodeId, ...] = ()
    for number in range(question.runs):
        world = PlanWorld(setup, question.seed * 1_000 + number, calibration, clients)
        if exposure is None:
            exposure = exposure_of(world.topology, world.zookeeper.layout)
            hosts = tuple(_victims(world, found))
        runs.append(_run(world, found, number))
    return Prediction(
        ha=found.ha,
        segments=found.segments,
        runs=tuple(runs),
        hosts=hosts,
        exposure=exposure,
        repair_h=_repair_h(found, question, setup, runs),
        question=question,
    )


def setup_of(flow: Dataflow, calibration: Calibration, question: Question, found: Variant) -> Setup:
    """What is simulated: the flow's settings, on links as they were described, with costs as they were measured."""
    assert found.topology is not None
    asked, link = flow.settings, question.link
    interval = question.interval or asked.ack_every
    # Clients take what comes first from whichever replica: none of them waits for another.
    hedge_ms = 0.0 if all(sink.connector.client for sink in flow.sinks.values()) else asked.hedge
    copy_bytes_per_s = min(asked.transfer_rate, link.bytes_per_s)
    return Setup(
        found.topology,
        question.nodes,
        standbys=asked.standbys,
        settings=replace(asked.protocol(), ack_every=interval, hedge_ms=hedge_ms, snapshots=False),
        links=LinkModel(
            latency_ms=link.latency_ms,
            jitter_ms=JITTER * link.latency_ms,
            bytes_per_ms=link.bytes_per_s / 1000,
            timeout_ms=asked.link_timeout,
            heartbeat_ms=asked.heartbeat,
        ),
        store=StoreModel(
            latency_ms=link.latency_ms,
            session_ms=asked.session_timeout,
            return_grace_ms=asked.return_grace,
            transfers=asked.transfers,
        ),
        costs=replace(calibration.costs(asked.node_cores, copy_bytes_per_s / 1000), gate_wait_ms=asked.gate_wait),
        rows_per_s=question.rate,
        check_every=0,
        skewed=False,
    )


def _run(world: PlanWorld, found: Variant, number: int) -> PredictedRun:
    """Let it run, count, kill a node and watch."""
    _advance(world, WARM_MS)
    before = world.bytes_by_purpose()
    _advance(world, WARM_MS + QUIET_MS)
    used = world.bytes_by_purpose() - before
    victims = _victims(world, found)
    victim = victims[number % len(victims)]
    # Between two acknowledgements or copies everything is possible, so runs are spread over that time.
    settings = world.setup.settings
    stretch_ms = max(1_000.0, settings.ack_every * settings.pulse_start_ms)
    moment = (number * GOLDEN + world.kernel.random("plan").random() / 8) % 1
    _advance(world, world.kernel.now_ms + stretch_ms * moment)
    killed_ms = world.kernel.now_ms
    world.kill(victim)
    if found.ha is Ha.NONE:
        _advance(world, killed_ms + RESTART_MS)
        world.boot(victim)
        process = world.machines[victim].process
        assert process is not None
        process.cold = True
    redundant_ms = _watch(world, killed_ms)
    return _figures(world, found, victim, killed_ms, redundant_ms, {name: used[name] for name in PURPOSES})


def _victims(world: PlanWorld, found: Variant) -> list[NodeId]:
    """The nodes with the oldest working replica of a segment that is looked at."""
    layout = world.zookeeper.layout
    nodes = [
        next(iter(layout.working_nodes_of(shard)))
        for part in world.topology.segments
        if part in found.segments
        for shard in world.topology.shards(part)
    ]
    return list(dict.fromkeys(nodes))


def _watch(world: PlanWorld, killed_ms: float) -> float | None:
    """Go on until everything is as it was; when redundancy was back."""
    redundant_ms: float | None = None
    while world.kernel.now_ms < killed_ms + LONGEST_MS:
        _advance(world, world.kernel.now_ms + LOOK_MS)
        if redundant_ms is None and world.shortage() is None:
            redundant_ms = world.kernel.now_ms
        enough = world.kernel.now_ms >= killed_ms + AFTER_MS
        if redundant_ms is not None and enough and _recovery(world, killed_ms, None).recovered_ms is not None:
            break
    return redundant_ms


def _recovery(world: PlanWorld, killed_ms: float, detected_ms: float | None) -> Recovery:
    return Recovery.of(world.samples, killed_ms, detected_ms)


def _figures(
    world: PlanWorld,
    found: Variant,
    victim: NodeId,
    killed_ms: float,
    redundant_ms: float | None,
    used: dict[str, int],
) -> PredictedRun:
    detected_ms = None
    if found.ha.value not in UNDETECTED:
        detected_ms = first_notice(world.zookeeper.history, killed_ms, (victim, *found.segments))
    recovery, between = _recovery(world, killed_ms, detected_ms).to_json(), gaps(world.samples, killed_ms)
    quiet = [sample for sample in world.samples if WARM_MS <= sample.arrived_ms < killed_ms]
    return PredictedRun(
        node=victim,
        bytes=used,
        latency_ms=round(statistics.median(sample.latency_ms for sample in quiet), 1) if quiet else 0.0,
        detection_s=recovery["detection_s"],
        partial_s=recovery["partial_s"]["from_kill"],
        full_s=recovery["full_s"]["from_kill"],
        gap_before_s=round(between["before"] / 1000, 3),
        gap_s=round(between["after"] / 1000, 3),
        redundant_s=None if redundant_ms is None else round((redundant_ms - killed_ms) / 1000, 3),
    )


def _repair_h(found: Variant, question: Question, setup: Setup, runs: Sequence[PredictedRun]) -> float:
    """How long a flow that has lost a node has less redundancy than it should.

    It is restored on the nodes that are left, if there are enough of them; otherwise a machine has to come back.
    """
    assert found.topology is not None
    times = [_whole_s(run, found) for run in runs]
    known = [seconds for seconds in times if seconds is not None]
    measured_h = statistics.mean(known) / 3600 if len(known) == len(times) else question.mttr_h
    needed = max(found.topology.strategy(part).nodes for part in found.topology.segments)
    waits = found.ha is Ha.NONE or question.nodes + setup.standbys - 1 < needed
    return measured_h + (question.mttr_h if waits else 0.0)


def _whole_s(run: PredictedRun, found: Variant) -> float | None:
    """When the next loss would be covered. What relies on its producers needs more than its place: it has to make
    again what the state of its consumer is made of."""
    if run.redundant_s is None or found.ha is not Ha.UPSTREAM:
        return run.redundant_s
    assert found.topology is not None
    horizons = [found.topology.strategy(part).horizon_ms / 1000 for part in found.topology.segments]
    return None if run.full_s is None else max(run.redundant_s, run.full_s) + max(horizons)


def _advance(world: PlanWorld, until_ms: float) -> None:
    while world.kernel.now_ms < until_ms:
        world.kernel.run(min(until_ms, world.kernel.now_ms + 1_000), MOST_EVENTS)
