"""The life of a node process: Spark, server, membership, layout, queries, loop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from unbroken.cluster.control import ControlSettings
from unbroken.cluster.coordination import Callbacks, Coordination, Member, connect
from unbroken.cluster.documents import read_run
from unbroken.cluster.node import Node
from unbroken.cluster.programs import Programs, read_program, write_first_program
from unbroken.cluster.queries import Queries
from unbroken.cluster.replica_dirs import ReplicaDirs
from unbroken.cluster.routes import Routes
from unbroken.cluster.snapshotting import Snapshots
from unbroken.cluster.warmup import WarmUp
from unbroken.connectors.push import Push
from unbroken.connectors.push_http import PushServer
from unbroken.errors import UnbrokenError
from unbroken.flow import Dataflow
from unbroken.metrics.server import MetricsServer
from unbroken.plan import build_topology, load_flow
from unbroken.program import Program
from unbroken.spark.analysis import analyse
from unbroken.spark.session import start_session
from unbroken.spark.snapshots import SnapshotStore

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LAYOUT_DEADLINE_S = 600
"""How long a node waits for the others before it gives up; people start nodes by hand, too."""


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
    standby: bool = False
    routes: Routes = field(default_factory=Routes)
    metrics_port: int | None = None


def run_node(options: NodeOptions) -> None:
    """Run a node until it is told to stop (SIGTERM, SIGINT, or the ``stop`` action)."""
    flow = load_flow(options.flow_file)
    directory = (options.directory or Path(".unbroken") / flow.name / options.name).resolve()
    dirs = ReplicaDirs(directory)
    disk = dirs.identity()
    threading.excepthook = _log_thread_failure
    if options.nodes is not None:
        flow.settings = flow.settings.model_copy(update={"nodes": options.nodes})
    topology = build_topology(flow)
    started = time.monotonic()
    _let_workers_import(options.flow_file.resolve().parent)
    session = start_session(f"unbroken-{flow.name}-{options.name}", flow.settings, options.spark_master, options.host)
    client = connect(options.zookeeper, flow.settings.session_timeout / 1000)
    programs = Programs(
        Program.first(flow, topology, str(options.flow_file.resolve()), options.flow_file.read_text()),
        flow,
        lambda generation: read_program(client, flow.name, generation),
        lambda flow, order: analyse(flow, order, session),
    )
    first = programs.load_first()
    log.info("Spark is up and the flow is analysed after %.1f s", time.monotonic() - started)
    node = Node(options.name, flow, programs, dirs, options.token, options.host, options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    push = _push_server(node, flow, options)
    metrics = _metrics_server(node, flow, options)
    me = _member(options, node, disk, "" if push is None else f"{options.host}:{push.port}")
    callbacks = Callbacks(
        lambda members: node.on_members(options.routes.applied(members)),
        node.on_layout,
        node.on_in_sync,
        node.tell,
        linked=lambda: node.links.known,
        connected=lambda: node.links.connected,
    )
    tuned = flow.settings
    grace_s = tuned.return_grace / 1000
    control = ControlSettings(tuned.nodes, tuned.transfers, grace_s, restorable=tuned.snapshots is not None)
    node.coordination = Coordination(client, flow.name, me, programs, control, callbacks)
    try:
        node.coordination.start()
        begin = node.await_layout(LAYOUT_DEADLINE_S)
        if begin is not None:
            _note_code(client, node, first, begin[0].generation)
            queries = Queries(node, session)
            node.hosting.queries = queries
            if flow.settings.snapshots is not None:
                url = f"{flow.settings.snapshots.rstrip('/')}/{flow.name}/{read_run(client, flow.name)}"
                store = SnapshotStore(url, session)
                node.snapshots = Snapshots(node, store, flow.settings.snapshot_every / 1000)
            node.begin(*begin)
            queries.open()
            node.warm_up = WarmUp(node, queries.around)
            node.warm_up.start()
            if node.snapshots is not None:
                node.snapshots.start()
            node.loop()
    finally:
        if push is not None:
            push.stop(2)
        if metrics is not None:
            metrics.stop(2)
        node.close()
        _stop_session(session)
        if node.server.stuck:
            _leave(node.failure or str(sys.exc_info()[1] or ""))
    if node.failure is not None:
        raise UnbrokenError(node.failure)


def _member(options: NodeOptions, node: Node, disk: str, push: str) -> Member:
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
    )


def _let_workers_import(folder: Path) -> None:
    """Let Spark's Python processes import what lies beside the user's file, as the file itself can."""
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{known}" if known else str(folder)


def _note_code(client: KazooClient, node: Node, given: Program, generation: int) -> None:
    """Keep the code that the flow began with where an upgrade finds it; one that came since is what counts."""
    if generation == 1:
        write_first_program(client, node.flow.name, given)
    elif read_program(client, node.flow.name, generation).text != given.text:
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


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    name = "a thread" if failure.thread is None else f"thread {failure.thread.name}"
    error = failure.exc_value
    # SystemExit ends a thread on purpose; Python's own hook is silent about it, too.
    if error is not None and not isinstance(error, SystemExit):
        log.error("%s failed: %s: %s", name, type(error).__name__, error, exc_info=error)


def _metrics_server(node: Node, flow: Dataflow, options: NodeOptions) -> MetricsServer | None:
    """HTTP for monitoring systems, if a port was given here or in the flow."""
    port = flow.settings.metrics_port if options.metrics_port is None else options.metrics_port
    if port is None:
        return None
    server = MetricsServer(options.host, port, flow.name, node.name, status=node.status, silence_s=node.silence_s)
    server.start()
    node.metrics = server.address
    log.info("metrics are at http://%s/metrics", server.address)
    return server


def _push_server(node: Node, flow: Dataflow, options: NodeOptions) -> PushServer | None:
    """HTTP for pushed rows, only when the flow has a source that takes them."""
    pushed = {name: s.connector for name, s in flow.sources.items() if isinstance(s.connector, Push)}
    if not pushed:
        return None
    server = PushServer(options.host, 0, options.token, node.submit_push, sources=pushed)
    server.start()
    return server
