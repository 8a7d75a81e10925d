"""A real node with its server and its loop; without Spark and ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.support import TOKEN, wait_until
from unbroken import Client, Dataflow, Generator
from unbroken.flow.plan import build_topology
from unbroken.flow.program import Program
from unbroken.node.event_queue import EventQueue
from unbroken.node.fair_queue import FairQueue
from unbroken.node.inquiries import QueueEntry
from unbroken.node.node import Node
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.programs import Programs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.controller import Decision, first_layout

FLOOD_S = 0.5


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    flow = Dataflow("x", nodes=1)
    flow.source("g", Generator(rate=100))
    flow.segment("g", name="seg", replicas=1)(lambda rows: rows)
    flow.sink("out", "seg", Client())
    programs = Programs(Program.first(flow, build_topology(flow), "f.py", ""), flow, lambda _: None, lambda *_: None)  # type: ignore[arg-type,return-value]
    dirs = ReplicaDirs(tmp_path / "n")
    disk = dirs.identity()
    events = EventQueue[QueueEntry](FairQueue(2_000, flood_s=FLOOD_S))
    node = Node("node-1", flow, programs, dirs, TOKEN, "127.0.0.1", 0, events)
    decision = first_layout(programs.topology, 1, {"node-1": disk}, {}, "run")
    assert isinstance(decision, Decision)
    layout = decision.layout

    def run() -> None:
        node.begin(layout, InSync(1, "node-1", frozenset({"node-1"}), 0))
        node.loop()

    loop = threading.Thread(target=run, name="loop", daemon=True)
    loop.start()
    wait_until(lambda: node.silence_s() is not None, 30, "the loop turns")
    yield node
    node.close()
    loop.join(30)
    assert not loop.is_alive()
