"""A node whose disk is damaged: it starts without what is damaged, names the file, and has it replaced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kit.hosts import hosting
from kit.topologies import chain
from unbroken.data.checksum import Damaged
from unbroken.data.staging import StagedUnit, Staging
from unbroken.data.unit_store import encode_unit
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.unit_files import UnitFiles
from unbroken.node.unit_reader import UnitReader
from unbroken.protocol.events import OutboxDamaged, Started, UnitDamaged
from unbroken.protocol.ingress.log import Entry, InSync
from unbroken.protocol.instructions import RepairUnit, StopReplica
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS, Layout
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.replicas import ReplicaUnreadable
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.transport.calls import UnitTicket

TOPOLOGY = chain((1,))
INPUT = StreamId(ShardId("source", 0), ShardId("s0", 0))


class FakeNode:
    """What these parts need of a node."""

    def __init__(self, directory: Path) -> None:
        self.name = "a"
        self.dirs = ReplicaDirs(directory)
        self.store = self.dirs.store
        self.disk = self.dirs.identity()
        self.staging = Staging(self.dirs.staging, self.store)
        self.staging.open()
        self.layout: Layout = chained_placement(TOPOLOGY, {"a": self.disk, "b": "another disk"})
        self.events: list[Any] = []
        self.story: list[Notice] = []
        self.protocol: Any = None
        self.view = None
        self.reader = UnitReader("a", self.store, self)

    def post(self, event: Any) -> None:
        self.events.append(event)

    def inquire(self, question: Any) -> Any:
        return None if self.protocol is None else question(self.protocol)

    def arrive(self, header: UnitHeader, data: pa.Buffer) -> StagedUnit:
        """A copy of a unit comes from another node."""
        incoming = self.staging.receive(header, "b")
        incoming.add(data)
        return incoming.finish()

    def replica(self, shard: ShardId) -> ReplicaId:
        return next(replica for replica in self.layout.hosted("a") if replica.shard == shard)

    def recover(self) -> dict[ReplicaId, Any]:
        host = hosting(name="a", dirs=self.dirs, topology_of=lambda _: TOPOLOGY, tell=self.story.append)
        return dict(host.recover(self.layout, self.disk))


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
    assert isinstance(told, ReplicaUnreadable) and (told.replica, told.node) == (ingress, "a")
    assert str(path) in told.detail and "copy the ingress log from another member" in told.detail
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
        node.reader.read_inbox(UnitTicket(replica, INPUT, 1))
    [event] = node.events
    assert isinstance(event, UnitDamaged) and (event.replica, event.stream, event.number) == (replica, INPUT, 1)


def test_a_damaged_unit_of_an_outbox_is_reported_and_ends_nothing(node: FakeNode) -> None:
    for owner in (node.replica(INPUT.consumer), node.replica(INGRESS)):
        path = node.store.outbox_path(owner, INPUT, 1)
        header = stored(node, path)
        with pytest.raises(Damaged, match=str(path)):
            node.reader.read_outbox(owner, header)
        event = node.events.pop()
        assert isinstance(event, OutboxDamaged) and (event.replica, event.stream, event.number) == (owner, INPUT, 1)
        assert str(path) in event.finding


def test_an_outbox_that_shares_a_damaged_unit_with_an_inbox_is_reported_first(node: FakeNode) -> None:
    replica, ingress = node.replica(INPUT.consumer), node.replica(INGRESS)
    outbox, inbox = node.store.outbox_path(ingress, INPUT, 1), node.store.inbox_path(replica, INPUT, 1)
    header = UnitHeader(INPUT, 1, 1, 0, Digest(1, 1))
    whole = encode_unit(header, pa.table({"v": [1]}))
    node.store.write(outbox, whole)
    node.store.link(outbox, inbox, header)
    flip(inbox)
    node.protocol = SimpleNamespace(outboxes=SimpleNamespace(owners={INPUT: ingress}))
    with pytest.raises(Damaged, match=str(inbox)):
        node.reader.read_inbox(UnitTicket(replica, INPUT, 1))
    assert [type(event) for event in node.events] == [OutboxDamaged, UnitDamaged]
    assert node.events[0].replica == ingress and str(outbox) in node.events[0].finding

    worker: Any = None
    files = UnitFiles(node.store, node.staging, worker, node.post, lambda _: pytest.fail("it can be kept"))
    files.repair(RepairUnit(ingress, header), node.arrive(header, whole))
    assert node.store.read(outbox) == whole
    with pytest.raises(Damaged):
        node.store.read(inbox)
    node.events.clear()
    with pytest.raises(Damaged):
        node.reader.read_inbox(UnitTicket(replica, INPUT, 1))
    assert [type(event) for event in node.events] == [UnitDamaged], "the outbox has a good copy"
