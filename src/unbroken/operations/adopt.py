"""Gives a flow whose ZooKeeper has lost its data its documents back, from what its nodes say of their disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from unbroken.coordination.documents import (
    FLOW,
    LAYOUT,
    PAUSE,
    UPGRADE,
    DiskDocument,
    FlowDocument,
    InSyncDocument,
    UpgradeDocument,
    read_disks,
    read_layout,
    read_members,
    root_of,
)
from unbroken.errors import DeadlinePassed, Refused
from unbroken.protocol.placement import adoption
from unbroken.protocol.placement.adoption import Adoption
from unbroken.protocol.values.ids import NodeId

LOOK_S = 0.3
REPORT_S = 10.0
"""How long nodes that are connected may take to report what their disks hold."""


def adopt(client: KazooClient, flow: str, without: Collection[NodeId] = ()) -> Adoption:
    """Publish the documents with which the run on the nodes' disks continues; raises Refused if that cannot be."""
    layout = read_layout(client, flow)
    if layout is not None:
        raise Refused(
            f"flow {flow} has a layout (of run {layout.run}, version {layout.version}), so there is nothing to adopt. "
            "See `unbroken status`"
        )
    found = _disks(client, flow)
    reports = [document.report for document in found.values()]
    decided = adoption.adopt(reports, without)
    _publish(client, flow, decided, _flow(found, decided))
    return decided


def _disks(client: KazooClient, flow: str) -> dict[NodeId, DiskDocument]:
    """What all nodes that are connected report of their disks; one whose session has just begun takes a moment."""
    deadline = time.monotonic() + REPORT_S
    while True:
        found = read_disks(client, flow)
        silent = sorted(node for node, member in read_members(client, flow).items() if member.run and node not in found)
        if not silent:
            return found
        if time.monotonic() > deadline:
            raise Refused(f"{', '.join(silent)} has not reported what its disk holds; see its log, and try again")
        time.sleep(LOOK_S)


def wait_adopted(client: KazooClient, flow: str, decided: Adoption, wait_s: float, show: Callable[[str], None]) -> None:
    """Wait until every node of the layout has taken it."""
    deadline = time.monotonic() + wait_s
    while waiting := sorted(set(read_disks(client, flow)) & set(decided.layout.nodes)):
        show(f"waiting for {', '.join(waiting)}")
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"{', '.join(waiting)} did not take the layout within {wait_s:.0f} s; see its log")
        time.sleep(LOOK_S)


def _flow(found: dict[NodeId, DiskDocument], decided: Adoption) -> FlowDocument:
    """The document about the run and its sinks, as a node has kept it."""
    kept = [document.flow for document in found.values() if document.flow is not None]
    mine = [document for document in kept if document.run.id == decided.layout.run]
    if not mine:
        raise Refused(f"no disk has the document about run {decided.layout.run}; start the nodes that have it")
    return mine[0]


def _publish(client: KazooClient, flow: str, decided: Adoption, document: FlowDocument) -> None:
    """All documents at once: half of them would never be completed."""
    layout, sync, root = decided.layout, decided.sync, root_of(flow)
    for part in ("draining", "code"):
        client.ensure_path(f"{root}/{part}")
    documents = {
        "topology": FLOW.encode(document),
        "in-sync": InSyncDocument(sync, layout.run, sync.version).to_bytes(),
        **{f"draining/{node}": b"" for node in layout.draining},
    }
    if layout.pause is not None:
        documents["paused"] = PAUSE.encode(layout.pause)
    if len(layout.generations) > 1:
        documents["upgrade"] = UPGRADE.encode(UpgradeDocument(layout.generations[-1]))
    together = client.transaction()
    for name, data in documents.items():
        # Some of them may have survived the layout.
        stat = client.exists(f"{root}/{name}")
        if stat is None:
            together.create(f"{root}/{name}", data)
        else:
            together.set_data(f"{root}/{name}", data, version=stat.version)
    together.create(f"{root}/layout", LAYOUT.encode(layout))
    failures = [answer for answer in together.commit() if isinstance(answer, Exception)]
    if any(isinstance(failure, NodeExistsError) for failure in failures):
        raise Refused(f"flow {flow} was adopted by another operator at this moment; see `unbroken status`")
    if failures:
        raise Refused(
            f"the documents were not written: {', '.join(type(each).__name__ for each in failures)}. Try again"
        )
