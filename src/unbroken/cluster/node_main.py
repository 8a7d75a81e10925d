"""The life of a node process: Spark, server, membership, layout, queries, loop."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unbroken.cluster.coordination import Callbacks, Coordination, Member, connect
from unbroken.cluster.node import Node, NodeDirs
from unbroken.connectors.push import Push
from unbroken.connectors.push_http import PushServer
from unbroken.flow import Dataflow
from unbroken.plan import build_topology, load_flow
from unbroken.spark.analysis import Analysis, analyse
from unbroken.spark.runner import QueryRunner, Surroundings
from unbroken.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LAYOUT_DEADLINE_S = 600
"""How long a node waits for the others before it gives up; people start nodes by hand, too."""


@dataclass(frozen=True)
class NodeOptions:
    """What `unbroken node` is told."""

    name: str
    flow_file: Path
    zookeeper: str
    directory: Path
    token: str
    host: str = "127.0.0.1"
    port: int = 0
    nodes: int | None = None
    spark_master: str | None = None


def run_node(options: NodeOptions) -> None:
    """Run a node until it is told to stop (SIGTERM, SIGINT, or the ``stop`` action)."""
    flow = load_flow(options.flow_file)
    if options.nodes is not None:
        flow.settings = flow.settings.model_copy(update={"nodes": options.nodes})
    topology = build_topology(flow)
    started = time.monotonic()
    session = start_session(f"unbroken-{flow.name}-{options.name}", flow.settings, options.spark_master)
    analysis = analyse(flow, tuple(topology.segments), session)
    log.info("Spark is up and the flow is analysed after %.1f s", time.monotonic() - started)
    dirs = NodeDirs(options.directory)
    node = Node(options.name, flow, topology, dirs, options.token, options.host, options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop())
    push = _push_server(node, flow, options)
    client = connect(options.zookeeper, flow.settings.session_timeout / 1000)
    me = Member(
        node=options.name,
        address=node.server.address,
        push="" if push is None else f"{options.host}:{push.port}",
        host=socket.gethostname(),
        pid=os.getpid(),
        incarnation=uuid.uuid4().hex,
    )
    callbacks = Callbacks(node.on_members, node.on_layout, node.on_in_sync)
    node.coordination = Coordination(client, flow.name, me, topology, flow.settings.nodes, callbacks)
    try:
        node.coordination.start()
        first = node.await_layout(LAYOUT_DEADLINE_S)
        if first is not None:
            node.begin(*first)
            _start_queries(node, analysis, session)
            node.loop()
    finally:
        if push is not None:
            push.stop(2)
        node.close()
        session.stop()


def _start_queries(node: Node, analysis: Analysis, session: SparkSession) -> None:
    around = Surroundings(
        session=session,
        store=node.store,
        gate=node.server.address,
        token=node.token,
        checkpoints=node.dirs.checkpoints,
        cut_info=node.cut_info,
        produced=node.produced,
    )
    assert node.protocol is not None
    for replica in node.protocol.replicas:
        runner = QueryRunner(replica, node.flow, node.topology, analysis.schemas, around)
        runner.start()
        node.runners[replica] = runner
    log.info("%s runs %s", node.name, ", ".join(str(replica) for replica in node.runners) or "no query")


def _push_server(node: Node, flow: Dataflow, options: NodeOptions) -> PushServer | None:
    """HTTP for pushed rows, only when the flow has a source that takes them."""
    pushed = {name: s.connector for name, s in flow.sources.items() if isinstance(s.connector, Push)}
    if not pushed:
        return None
    server = PushServer(options.host, 0, options.token, node.submit_push, sources=pushed)
    server.start()
    return server

