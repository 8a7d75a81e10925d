"""The generations of the user's code as a node knows them: their shapes at once, their code when it is needed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from unbroken.codecs.codec import Codec
from unbroken.coordination.documents import read_members, read_names, root_of
from unbroken.errors import FlowError, Problem, UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_text
from unbroken.flow.program import Consumer, Program, code_digest, consumers, merged
from unbroken.protocol.combinations import fixed_code
from unbroken.protocol.values.ids import NodeId, ShardId, home_of, segment_of
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.security.sealing import ForgedDocument
from unbroken.spark.analysis.analysis import Analysis
from unbroken.spark.analysis.horizon import kept_for, reaches_further, settled
from unbroken.spark.analysis.resumption import conflicts, other_code
from unbroken.spark.runner import SegmentCode

Analyse = Callable[[Dataflow, tuple[str, ...]], Analysis]
"""Asks Spark what it says of a flow, given the order of its segments."""

LOOK_S = 0.2
"""How often members are looked at while entries of killed nodes are waited for."""

WRITE_ATTEMPTS = 100
"""More than there are nodes that begin at the same time: each attempt fails because another node's has not."""


class Programs:
    """The programs of a flow. ``use`` says which of them run; others are forgotten, except what the node was given.

    Safe to use from several threads.
    """

    def __init__(self, first: Program, flow: Dataflow, fetch: Callable[[int], Program], analyse: Analyse) -> None:
        self._known = {first.generation: first}
        self._flows = {first.generation: flow}
        self._found: dict[int, Analysis] = {}
        self._fetch = fetch
        self._analyse = analyse
        self._lock = threading.RLock()
        self._running: tuple[Program, ...] = (first,)
        self._version = 0
        self._topology = merged(self._running)
        self._consumers: dict[str, tuple[Consumer, ...]] = {}

    def load_first(self) -> Program:
        """Let Spark look at what the node begins with; the same program with what only Spark can tell.

        Raises FlowError with all that is wrong with it.
        """
        with self._lock:
            given = self._running[0]
            _, analysis = self._load(given)
            first = replace(given, topology=settled(given.topology, analysis.horizons)).split_by(analysis.shard_by)
            self._known[first.generation] = first
            self._running, self._topology, self._consumers = (first,), merged((first,)), {}
            return first

    def knows(self, generations: Sequence[int]) -> bool:
        with self._lock:
            return set(generations) <= set(self._known)

    def shape(self, generations: Sequence[int]) -> Topology:
        """The topology while these generations run; asks ZooKeeper for those that are not known here."""
        with self._lock:
            running = self._programs(generations)
            return self._topology if running == self._running else merged(running)

    def use(self, layout: Layout) -> Topology:
        """Run what a layout names, unless a later one has been seen; the topology of its generations."""
        with self._lock:
            running = self._programs(layout.generations)
            if layout.version >= self._version and running != self._running:
                self._running, self._topology, self._consumers = running, merged(running), {}
                self._forget_others()
            self._version = max(self._version, layout.version)
            return self._topology if running == self._running else merged(running)

    def _forget_others(self) -> None:
        kept = {1, *(program.generation for program in self._running)}
        self._known = {generation: program for generation, program in self._known.items() if generation in kept}
        self._flows = {generation: flow for generation, flow in self._flows.items() if generation in kept}
        self._found = {generation: analysis for generation, analysis in self._found.items() if generation in kept}

    def _programs(self, generations: Sequence[int]) -> tuple[Program, ...]:
        for generation in generations:
            if generation not in self._known:
                self._known[generation] = self._fetch(generation)
        return tuple(self._known[generation] for generation in generations)

    @property
    def running(self) -> tuple[Program, ...]:
        """The programs that run, oldest first."""
        return self._running

    @property
    def newest(self) -> Program:
        """The program whose results count, or are about to."""
        return self._running[-1]

    @property
    def as_given(self) -> bool:
        """Whether the text that this node was started with is what runs."""
        return self.newest.text == self._known[1].text

    @property
    def topology(self) -> Topology:
        return self._topology

    def consumers(self, part: str) -> tuple[Consumer, ...]:
        """Who reads a part's rows at this moment; those of a fork are for the same."""
        part = home_of(part)
        with self._lock:
            if part not in self._consumers:
                self._consumers[part] = consumers(self._running, part)
            return self._consumers[part]

    def code(self, shard: ShardId) -> SegmentCode:
        """What replicas of ``shard`` and their forks run; raises if the code does not load or Spark refuses it."""
        shard = ShardId(home_of(shard.part), shard.index)
        with self._lock:
            program = next((p for p in reversed(self._running) if shard.part in p.topology.segments), None)
            if program is None:
                raise UnbrokenError(f"no generation of the code that runs has a part {shard.part}")
            flow, analysis = self._load(program)
        segment = flow.segments[segment_of(shard.part)]
        inputs = program.topology.inputs(shard)
        streams = {
            name: tuple(stream for stream in inputs if stream.producer.part == program.part(name))
            for name in segment.inputs
        }
        return SegmentCode(segment, {name: analysis.schemas[name] for name in segment.inputs}, streams)

    def _load(self, program: Program) -> tuple[Dataflow, Analysis]:
        generation = program.generation
        if generation not in self._flows:
            self._flows[generation] = _split(load_text(Path(program.file), program.text, generation), program)
        flow = self._flows[generation]
        if generation not in self._found:
            order = tuple(segment_of(part) for part in program.topology.segments)
            analysis = self._analyse(flow, order)
            if generation > 1:
                _refuse_what_reaches_further(flow, program, analysis)
            self._found[generation] = analysis
        return flow, self._found[generation]


def _split(flow: Dataflow, program: Program) -> Dataflow:
    """The flow of a program that follows another: its rows are split by the columns that state was split by."""
    for name, segment in flow.segments.items():
        if segment.shards > 1 and not any(segment.shard_by.values()):
            flow.segments[name] = replace(segment, shard_by=program.shard_by(segment))
    return flow


def _refuse_what_reaches_further(flow: Dataflow, program: Program, analysis: Analysis) -> None:
    """A program that follows another has its strategies. State that needs more than they keep could not be built again
    from what producers have let go already; for state that needs less, they keep a little too much."""
    fixed = fixed_code(program.topology)
    problems = [] if fixed is None else [Problem(flow.where, *fixed)]
    for part in program.topology.segments:
        name = segment_of(part)
        kept, found = kept_for(program.topology, part), analysis.horizons.get(name)
        missing = None if found is None else reaches_further(kept, found)
        if missing is not None:
            remedy = "keep the windows and watermarks of the code before it, or make this change with a fresh start"
            problems.append(Problem(flow.segments[name].where, missing, remedy))
    if problems:
        raise FlowError(problems)


# --- documents --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CodeDocument:
    """The program of a generation; the first one with its ``run``, because a former run may have left another."""

    program: Program
    run: str = ""


CODE = Codec(CodeDocument, "code", readable=True)


def write_program(client: KazooClient, flow: str, program: Program) -> None:
    """Make a generation known; raises UnbrokenError if there is one of its number."""
    path = f"{root_of(flow)}/code/{program.generation}"
    try:
        client.create(path, CODE.encode(CodeDocument(program)), makepath=True)
    except NodeExistsError:
        raise UnbrokenError(
            f"somebody else upgrades flow {flow} at this moment; see `unbroken history` and try again"
        ) from None


def write_first_program(
    client: KazooClient, flow: str, program: Program, run: str, refuse: Callable[[Program], None] | None = None
) -> None:
    """Note what a run began with; the file of a restart replaces it if it can continue the run.

    Raises FlowError if it cannot: of nodes that begin a run with different files, the first one decides. ``refuse``
    is asked about the program that is there, and raises FlowError if a node runs it.

    A node registers before it calls this, and writes even what is there already. So of two nodes with different code
    the later one to write finds the other one's code in use, or its own write fails.
    """
    path, data = f"{root_of(flow)}/code/1", CODE.encode(CodeDocument(program, run))
    for _ in range(WRITE_ATTEMPTS):
        try:
            client.create(path, data, makepath=True)
            return
        except NodeExistsError:
            pass
        try:
            before, stat = client.get(path)
        except ForgedDocument:
            client.set(path, data)  # this node was given the code by its operator
            return
        except NoNodeError:
            continue
        known = _of_run(before, run)
        refuse_other_program(known, program)
        if known is not None and refuse is not None:
            refuse(known)
        with contextlib.suppress(BadVersionError):  # another node was faster
            client.set(path, data, version=stat.version)
            return
    raise UnbrokenError(f"the code of flow {flow} changes in ZooKeeper all the time: {path}. Restart this node.")


def program_of_run(client: KazooClient, flow: str, generation: int, run: str) -> Program | None:
    """The program by which the state of a run was made; None if ZooKeeper has none that can be believed."""
    try:
        data = client.get(f"{root_of(flow)}/code/{generation}")[0]
    except (NoNodeError, ForgedDocument):
        return None
    return _of_run(data, run) if generation == 1 else CODE.decode(data).program


def _of_run(data: bytes, run: str) -> Program | None:
    """The first program, unless a former run of the flow has left it."""
    found = CODE.decode(data)
    return found.program if found.run == run else None


def refuse_other_program(run: Program | None, given: Program) -> None:
    """Raise FlowError if the file of a node cannot continue the run that it would take part in."""
    if run is None:
        return
    problems = conflicts(run, given, given.file, runs_given=run.generation == given.generation)
    if problems:
        raise FlowError(problems)


def refuse_other_code(
    client: KazooClient, flow: Dataflow, run: Program | None, given: Program, me: NodeId, wait_s: float = 0.0
) -> None:
    """Raise FlowError if another node is alive that runs the code of ``run``, and that of ``given`` differs from it.

    The entries of nodes that were killed vanish within ``wait_s``.
    """
    if run is None or run.generation != given.generation:
        return
    code, deadline = code_digest(flow, run.text), time.monotonic() + wait_s
    while True:
        members = read_members(client, flow.name)
        users = [node for node, member in members.items() if node != me and member.code == code]
        problems = other_code(run, given, flow, users)
        if not problems:
            return
        if time.monotonic() > deadline:
            raise FlowError(problems)
        time.sleep(LOOK_S)


def read_program(client: KazooClient, flow: str, generation: int) -> Program:
    try:
        data = client.get(f"{root_of(flow)}/code/{generation}")[0]
    except NoNodeError:
        raise UnbrokenError(f"the code of generation {generation} of flow {flow} is not in ZooKeeper") from None
    return CODE.decode(data).program


def known_generations(client: KazooClient, flow: str) -> list[int]:
    return sorted(int(name) for name in read_names(client, flow, "code"))
