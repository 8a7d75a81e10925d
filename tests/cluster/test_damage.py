"""A node whose disk is damaged: it starts without what is damaged, names the file, and has it replaced."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from protocol.model_parts import chain
from unbroken import Dataflow
from unbroken.data.checksum import Damaged
from unbroken.data.unit_store import encode_unit
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.node import Node
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.hosting import Hosting
from unbroken.protocol.events import OutboxDamaged, Started, UnitDamaged
from unbroken.protocol.ingress.log import Entry, InSync
from unbroken.protocol.instructions import RepairUnit, StopReplica
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout, chained_placement
from unbroken.protocol.values.units import Digest, UnitHeader

TOPOLOGY = chain((1,))
INPUT = StreamId(ShardId("source", 0), ShardId("s0", 0))


class FakeNode:
    """What these parts need of a node."""

    def __init__(self, directory: Path) -> None:
        self.name = "a"
        self.dirs = ReplicaDirs(directory)
        self.store = self.dirs.store
        self.disk = self.dirs.identity()
        self.programs = SimpleNamespace(use=lambda layout: TOPOLOGY)
        self.layout: Layout = chained_placement(TOPOLOGY, {"a": self.disk, "b": "another disk"})
        self.flow = Dataflow("damaged")
        self.letters = None
        self.ingress: Any = None
        self.events: list[Any] = []
        self.story: list[str] = []
        self.failure: str | None = None
        self.protocol: Any = None
        self._lock = threading.Lock()

    def post(self, event: Any) -> None:
        self.events.append(event)

    def tell(self, sentence: str) -> None:
        self.story.append(sentence)

    def fail(self, sentence: str) -> None:
        self.failure = sentence

    def read_outbox(self, replica: ReplicaId, header: UnitHeader) -> pa.Buffer:
        raise AssertionError

    def _verify_outbox(self, stream: StreamId, number: int) -> None:
        Node._verify_outbox(self, stream, number)  # type: ignore[arg-type]

    def replica(self, shard: ShardId) -> ReplicaId:
        return next(replica for replica in self.layout.hosted("a") if replica.shard == shard)

    def recover(self) -> dict[ReplicaId, Any]:
        return Hosting(self).recover(self.layout, self.disk)  # type: ignore[arg-type]


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "a")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_log_is_not_used_and_the_controller_is_asked_for_another(node: FakeNode) -> None:
    """From there it is the way of any replica that is lost: the leader continues, and a newcomer copies the log."""
    ingress = node.replica(INGRESS)
    assert set(node.recover()) == set(node.layout.hosted("a"))
    log = IngressLogFile(node.dirs.ingress_log(ingress))
    log.append(*(Entry(index, 1, b"rows", index) for index in range(1, 4)))
    log.close()
    [path] = node.dirs.ingress_log(ingress).glob("*.log")
    flip(path)
    recovered = node.recover()
    assert ingress not in recovered and len(recovered) == len(node.layout.hosted("a")) - 1
    [told] = node.story
    assert str(path) in told and "copy the ingress log from another member" in told
    assert path.exists(), "nothing is deleted before there is another copy"
    sync = InSync(1, "b", frozenset(node.layout.nodes_of(INGRESS)), 0)
    protocol = NodeProtocol("a", TOPOLOGY, node.layout, sync, recovered, disk=node.disk)
    steps = protocol.handle(Started(), 0)
    assert [step.replica for step in steps if isinstance(step, StopReplica)] == [ingress]


def stored(node: FakeNode, path: Path) -> UnitHeader:
    header = UnitHeader(INPUT, 1, 1, 0, Digest(1, 1))
    node.store.write(path, encode_unit(header, pa.table({"v": [1]})))
    flip(path)
    return header


def test_a_damaged_unit_of_an_inbox_is_reported_to_the_protocol(node: FakeNode) -> None:
    replica = node.replica(INPUT.consumer)
    path = node.store.inbox_path(replica, INPUT, 1)
    stored(node, path)
    with pytest.raises(Damaged, match=str(path)):
        Node.read_inbox(node, str(replica), str(INPUT), 1)  # type: ignore[arg-type]
    [event] = node.events
    assert isinstance(event, UnitDamaged) and (event.replica, event.stream, event.number) == (replica, INPUT, 1)


def test_a_damaged_unit_of_an_outbox_is_reported_and_ends_nothing(node: FakeNode) -> None:
    for owner in (node.replica(INPUT.consumer), node.replica(INGRESS)):
        path = node.store.outbox_path(owner, INPUT, 1)
        header = stored(node, path)
        node.ingress = SimpleNamespace(replica=node.replica(INGRESS))
        with pytest.raises(Damaged, match=str(path)):
            Node.read_outbox(node, owner, header)  # type: ignore[arg-type]
        event = node.events.pop()
        assert isinstance(event, OutboxDamaged) and (event.replica, event.stream, event.number) == (owner, INPUT, 1)
        assert str(path) in event.finding
    assert node.failure is None


def test_an_outbox_that_shares_a_damaged_unit_with_an_inbox_is_reported_first(node: FakeNode) -> None:
    replica, ingress = node.replica(INPUT.consumer), node.replica(INGRESS)
    outbox, inbox = node.store.outbox_path(ingress, INPUT, 1), node.store.inbox_path(replica, INPUT, 1)
    header = UnitHeader(INPUT, 1, 1, 0, Digest(1, 1))
    whole = encode_unit(header, pa.table({"v": [1]}))
    node.store.write(outbox, whole)
    node.store.link(outbox, inbox)
    flip(inbox)
    node.protocol = SimpleNamespace(outboxes=SimpleNamespace(owners={INPUT: ingress}))
    with pytest.raises(Damaged, match=str(inbox)):
        Node.read_inbox(node, str(replica), str(INPUT), 1)  # type: ignore[arg-type]
    assert [type(event) for event in node.events] == [OutboxDamaged, UnitDamaged]
    assert node.events[0].replica == ingress and str(outbox) in node.events[0].finding

    Node._repair_unit(node, RepairUnit(ingress, header), whole)  # type: ignore[arg-type]
    assert node.store.read(outbox) == whole
    with pytest.raises(Damaged):
        node.store.read(inbox)
    node.events.clear()
    with pytest.raises(Damaged):
        Node.read_inbox(node, str(replica), str(INPUT), 1)  # type: ignore[arg-type]
    assert [type(event) for event in node.events] == [UnitDamaged], "the outbox has a good copy"
