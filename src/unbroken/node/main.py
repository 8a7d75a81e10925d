"""The life of a node process: Spark, server, membership, layout, queries, loop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from unbroken.connectors.push.http import PushServer
from unbroken.connectors.push.source import Push
from unbroken.coordination.documents import Member, connect, read_flow_document, read_layout
from unbroken.coordination.routes import Routes
from unbroken.errors import UnbrokenError
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Declared, Program, code_digest
from unbroken.flow.settings import Settings
from unbroken.node.membership.controller import ControlSettings
from unbroken.node.membership.documents_copy import CoordinationCopy
from unbroken.node.membership.session import Callbacks, Coordination
from unbroken.node.node import Node
from unbroken.node.open_files import raise_open_files
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import (
    Programs,
    known_generations,
    program_of_run,
    read_program,
    refuse_other_code,
    refuse_other_program,
    write_first_program,
    write_program,
)
from unbroken.node.replicas.retired_replicas import Retiring
from unbroken.node.replicas.snapshots import Snapshots
from unbroken.node.replicas.warmup import WarmUp
from unbroken.node.service_manager import Supervision
from unbroken.node.sink_occupancy import refuse_occupied, runs_in_sinks
from unbroken.node.traces import open_traces
from unbroken.observe.metrics.server import MetricsServer
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.run import WAYS
from unbroken.security.secret import Secret
from unbroken.spark.analysis.analysis import Analysis, analyse
from unbroken.spark.executors import check_executors
from unbroken.spark.master import is_local
from unbroken.spark.session import start_session
from unbroken.spark.snapshots import SnapshotStore
from unbroken.threads import failure_hook

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from unbroken.protocol.ingress.log import InSync
    from unbroken.protocol.values.layout import Layout

log = logging.getLogger(__name__)

LAYOUT_DEADLINE_S = 600
"""How long a node waits for the others before it gives up; people start nodes by hand, too."""

SESSION_END_S = 5.0
"""ZooKeeper ends the session of a killed node at one of its ticks, and after its own restart counts from there."""


@dataclass(frozen=True)
class NodeOptions:
    """What `unbroken node` is told. Without a directory the node keeps its state in one of the flow's own."""

    name: str
    flow_file: Path
    zookeeper: str
    directory: Path | None
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    nodes: int | None = None
    spark_master: str | None = None
    spark: Mapping[str, str | Secret] = field(default_factory=dict)
    standby: bool = False
    add_to_sinks: bool = False
    routes: Routes = field(default_factory=Routes)
    metrics_port: int | None = None
    push_port: int = 0


def run_node(
    options: NodeOptions, session: SparkSession | None = None, begun: Callable[[Callable[[], None]], None] | None = None
) -> None:
    """Run a node until it is told to stop (SIGTERM, SIGINT, or the ``stop`` action).

    A ``session`` that is given stays open afterwards: whoever started it has more to do with it. ``begun`` is given
    what stops the node, as soon as that can be done.
    """
    raise_open_files()
    flow = load_flow(options.flow_file)
    directory = (options.directory or Path(".unbroken") / flow.name / options.name).resolve()
    dirs = ReplicaDirs(directory)
    disk = dirs.identity()
    dirs.keep_private()
    threading.excepthook = failure_hook(lambda _name, _reason: None)
    declared = Declared.of(flow)
    flow.settings = _settings(flow, options)
    topology = build_topology(flow)
    started = time.monotonic()
    _let_workers_import(options.flow_file.resolve().parent)
    owned = session is None
    if session is None:
        name = f"unbroken-{flow.name}-{options.name}"
        session = start_session(name, flow.settings, options.spark_master, options.host, dirs.scratch())
    client = connect(options.zookeeper, flow.settings.session_timeout / 1000, token=options.token)
    if not options.add_to_sinks:
        _refuse_occupied(client, flow, dirs)
    programs = Programs(
        Program.first(flow, topology, str(options.flow_file.resolve()), options.flow_file.read_text(), declared),
        flow,
        lambda generation: _program(client, flow.name, generation, CoordinationCopy(dirs)),
        lambda flow, order: _analysed(flow, order, session, directory),
    )
    first = programs.load_first()
    _refuse_other_run(client, flow, first, dirs, options.name)
    log.info("Spark is up and the flow is analysed after %.1f s", time.monotonic() - started)
    node = Node(options.name, flow, programs, dirs, options.token, options.host, options.port)
    threading.excepthook = failure_hook(node.thread_failed)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    if begun is not None:
        begun(node.stop)
    supervision = Supervision(node.silence_s, hung=node.hung)
    push = _push_server(node, flow, options)
    metrics = _metrics_server(node, flow, options)
    code = code_digest(flow, first.text)
    me = _member(options, node, disk, "" if push is None else f"{options.host}:{push.port}", code)
    node.coordination = _coordination(client, node, me, options)
    try:
        node.coordination.start()
        supervision.ready()
        begin = node.await_layout(LAYOUT_DEADLINE_S)
        if begin is not None:
            _work(node, session, client, first, begin)
    finally:
        supervision.stopping()
        if push is not None:
            push.stop(2)
        if metrics is not None:
            metrics.stop(2)
        node.close()
        if owned:
            _stop_session(session)
            if node.server.stuck:
                _leave(node.failure or str(sys.exc_info()[1] or ""))
    if node.failure is not None:
        raise UnbrokenError(node.failure)


def _work(node: Node, session: SparkSession, client: KazooClient, first: Program, begin: tuple[Layout, InSync]) -> None:
    """Take the place that the layout has for a node, and handle events until it is told to stop."""
    document = read_flow_document(client, node.flow.name)
    run = document.run
    if run.id != begin[0].run:
        raise UnbrokenError(f"ZooKeeper has documents of two runs: {run.id} and {begin[0].run}. {WAYS}.")
    node.belong(document)
    _note_code(client, node, first, begin[0].generation)
    engine, queries = node.run_on(session)
    if node.settings.snapshots is not None:
        url = f"{node.settings.snapshots.rstrip('/')}/{node.flow.name}/{run.id}"
        store = SnapshotStore(url, session)
        node.snapshots = Snapshots(node, node, node.pin_requests, store, node.settings.snapshot_every / 1000)
    node.tracing = open_traces(node, run.id, *begin)
    node.open_letters(run.id)
    node.begin(*begin)
    Retiring(node, node.dirs, lambda: node.view).start()
    engine.open(queries.look)
    node.warm_up = WarmUp(node, node, node.programs, node.dirs.root, engine.around)
    node.warm_up.start()
    if node.snapshots is not None:
        node.snapshots.start()
    node.loop()


def _settings(flow: Dataflow, options: NodeOptions) -> Settings:
    """The flow's settings, with what this node was told otherwise."""
    changed: dict[str, Any] = {} if options.nodes is None else {"nodes": options.nodes}
    if options.spark:
        changed["spark"] = {**flow.settings.spark, **options.spark}
    return flow.settings.model_copy(update=changed)


def _coordination(client: KazooClient, node: Node, me: Member, options: NodeOptions) -> Coordination:
    callbacks = Callbacks(
        lambda members: node.on_members(options.routes.applied(members)),
        node.on_layout,
        node.on_in_sync,
        node.tell,
        node.note,
        linked=lambda: node.links.known,
        connected=lambda: node.links.connected,
        disk=node.disk_document,
        superseded=lambda: runs_in_sinks(node.flow) if options.add_to_sinks else frozenset(),
    )
    tuned = node.settings
    grace_s = tuned.return_grace / 1000
    control = ControlSettings(tuned.nodes, tuned.transfers, grace_s, restorable=tuned.snapshots is not None)
    return Coordination(client, node.flow.name, me, node.programs, control, callbacks)


def _member(options: NodeOptions, node: Node, disk: str, push: str, code: str) -> Member:
    """This process as the others know it."""
    return Member(
        node=options.name,
        address=node.server.address,
        push=push,
        host=socket.gethostname(),
        pid=os.getpid(),
        incarnation=uuid.uuid4().hex,
        disk=disk,
        standby=options.standby,
        run=node.run.id,
        code=code,
    )


def _refuse_occupied(client: KazooClient, flow: Dataflow, dirs: ReplicaDirs) -> None:
    """Refuse to begin a flow on sinks of an earlier run: its units would pass for delivered.

    Asked before this node registers, and so before there can be a first layout of a run that it takes part in.
    """
    if dirs.run().id or read_layout(client, flow.name) is not None:
        return
    try:
        refuse_occupied(flow)
    except UnbrokenError:
        # The others may have begun since, and have written what was found.
        if read_layout(client, flow.name) is None:
            raise


def _refuse_other_run(client: KazooClient, flow: Dataflow, given: Program, dirs: ReplicaDirs, me: NodeId) -> None:
    """Refuse a file by which the state of the run was not made, or with other code than nodes that run.

    Asked before this node registers: as the controller it would place the parts that its file declares. If ZooKeeper
    has lost the program, the copy on the disk of this node counts.
    """
    layout, copy = read_layout(client, flow.name), CoordinationCopy(dirs)
    program = None if layout is None else program_of_run(client, flow.name, layout.generation, layout.run)
    kept = copy.layout
    if program is None and kept is not None and kept.run == (dirs.run().id if layout is None else layout.run):
        program = copy.program(kept.generation)
    refuse_other_program(program, given)
    refuse_other_code(client, flow, program, given, me, wait_s=flow.settings.session_timeout / 1000 + SESSION_END_S)


def _program(client: KazooClient, flow: str, generation: int, copy: CoordinationCopy) -> Program:
    """The code of a generation; ZooKeeper may have lost it, but not the disk of a node that ran it."""
    kept = copy.program(generation)
    try:
        return read_program(client, flow, generation)
    except UnbrokenError:
        if kept is None:
            raise
        return kept


def _analysed(flow: Dataflow, order: tuple[str, ...], session: SparkSession, directory: Path) -> Analysis:
    """What Spark says of the flow, and that executors, if there are any, can do what it needs."""
    analysis = analyse(flow, order, session)
    if not is_local(session.sparkContext.master):
        check_executors(session, directory, analysis.stateful)
    return analysis


def _let_workers_import(folder: Path) -> None:
    """Let Spark's Python processes import what lies beside the user's file, as the file itself can."""
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{known}" if known else str(folder)


def _note_code(client: KazooClient, node: Node, given: Program, generation: int) -> None:
    """Keep the code that the flow began with where an upgrade finds it; one that came since is what counts."""
    if generation == 1:
        write_first_program(
            client,
            node.flow.name,
            given,
            node.run.id,
            lambda known: refuse_other_code(client, node.flow, known, given, node.name),
        )
        node.copy.keep_program(given)
        return
    known = node.programs.newest
    if generation not in known_generations(client, node.flow.name) and known.generation == generation:
        with contextlib.suppress(UnbrokenError):  # Another node was first.
            write_program(client, node.flow.name, known)
    if known.text != given.text:
        log.warning("the flow runs generation %d of its code, not the text of %s", generation, given.file)


def _stop_session(session: SparkSession) -> None:
    """End Spark; a JVM that has ended before, as when the whole terminal is interrupted, is no cause for alarm."""
    try:
        session.stop()
    except Exception as error:
        log.info("Spark had ended before: %s", error)


def _leave(failure: str) -> NoReturn:
    """End the process here and now: Python would wait for links that a cut in the network keeps from ending."""
    if failure:
        log.critical("%s", failure)
    logging.shutdown()
    os._exit(1 if failure else 0)


def _metrics_server(node: Node, flow: Dataflow, options: NodeOptions) -> MetricsServer | None:
    """HTTP for monitoring systems, if a port was given here or in the flow."""
    port = flow.settings.metrics_port if options.metrics_port is None else options.metrics_port
    if port is None:
        return None
    server = MetricsServer(
        options.host, port, flow.name, node.name, status=node.status, silence_s=node.silence_s, hung=node.hung
    )
    server.start()
    node.metrics = server.address
    log.info("metrics are at http://%s/metrics", server.address)
    return server


def _push_server(node: Node, flow: Dataflow, options: NodeOptions) -> PushServer | None:
    """HTTP for pushed rows, only when the flow has a source that takes them."""
    pushed = {name: s.connector for name, s in flow.sources.items() if isinstance(s.connector, Push)}
    if not pushed:
        return None
    server = PushServer(options.host, options.push_port, options.token, node.submit_push, sources=pushed)
    server.start()
    return server
