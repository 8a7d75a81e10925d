"""ZooKeeper through kazoo: members, the layout, the in-sync set of the ingress, the controller's election.

Nothing on the data path waits for anything here: callbacks post events to the node's loop, and the calls
that change a document run on a thread of their own.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.errors import UnbrokenError
from unbroken.protocol.controller import next_layout
from unbroken.protocol.ids import NodeId
from unbroken.protocol.ingress import InSync, ProposeInSync
from unbroken.protocol.layout import INGRESS, Layout, Topology

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause before a change is tried again while ZooKeeper is away."""

HISTORY_LIMIT = 1_000
"""Sentences kept in the history; the oldest are dropped."""


@dataclass(frozen=True)
class Member:
    """What a node tells the others about itself."""

    node: NodeId
    address: str
    push: str
    host: str
    pid: int
    incarnation: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Member:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Callbacks:
    """Called from kazoo's threads; each must return at once."""

    members: Callable[[dict[NodeId, Member]], None]
    layout: Callable[[Layout], None]
    in_sync: Callable[[InSync], None]


def connect(address: str, session_timeout_s: float, deadline_s: float = 20) -> KazooClient:
    client = KazooClient(hosts=address, timeout=session_timeout_s)
    try:
        client.start(timeout=deadline_s)
    except KazooTimeoutError:
        raise UnbrokenError(
            f"no ZooKeeper answers at {address}. Start the flow with `unbroken run`, or give the address of "
            "the ensemble it uses with --zookeeper HOST:PORT."
        ) from None
    return client


def read_members(client: KazooClient, flow: str) -> dict[NodeId, Member]:
    root = f"/unbroken/{flow}/members"
    out: dict[NodeId, Member] = {}
    try:
        names = client.get_children(root)
    except NoNodeError:
        return out
    for name in sorted(names):
        try:
            out[name] = Member.from_bytes(client.get(f"{root}/{name}")[0])
        except NoNodeError:
            continue
    return out


def read_layout(client: KazooClient, flow: str) -> Layout | None:
    try:
        return Layout.from_json(json.loads(client.get(f"/unbroken/{flow}/layout")[0]))
    except NoNodeError:
        return None


def read_history(client: KazooClient, flow: str) -> list[dict[str, Any]]:
    """The sentences of the flow's history, oldest first."""
    root = f"/unbroken/{flow}/history"
    out: list[dict[str, Any]] = []
    try:
        names = client.get_children(root)
    except NoNodeError:
        return out
    for name in sorted(names):
        try:
            out.append(json.loads(client.get(f"{root}/{name}")[0]))
        except NoNodeError:
            continue
    return out


class Coordination:
    """A node's view of ZooKeeper, and its candidacy for controller."""

    def __init__(
        self, client: KazooClient, flow: str, me: Member, topology: Topology, wanted_nodes: int, callbacks: Callbacks
    ) -> None:
        self._client = client
        self._root = f"/unbroken/{flow}"
        self._me = me
        self._topology = topology
        self._wanted = wanted_nodes
        self._callbacks = callbacks
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(10_000)
        self._closed = threading.Event()
        self._members: dict[NodeId, Member] = {}
        self._changed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="zookeeper-jobs", daemon=True),
            threading.Thread(target=self._candidate, name="controller", daemon=True),
        ]

    def start(self) -> None:
        for part in ("members", "history"):
            self._client.ensure_path(f"{self._root}/{part}")
        self._register()
        self._client.add_listener(self._state_changed)
        self._client.ChildrenWatch(f"{self._root}/members", self._on_members)
        self._client.DataWatch(f"{self._root}/layout", self._on_layout)
        self._client.DataWatch(f"{self._root}/in-sync", self._on_in_sync)
        for thread in self._threads:
            thread.start()

    def propose(self, proposal: ProposeInSync) -> None:
        """Try to change the in-sync set; whatever the document says afterwards comes by callback."""
        self._jobs.put(lambda: self._replace_in_sync(proposal))

    def report(self, sentence: str) -> None:
        """Add a sentence to the flow's history."""
        entry = json.dumps({"time_ms": int(time.time() * 1000), "node": self._me.node, "sentence": sentence})
        self._jobs.put(lambda: self._write_history(entry.encode()))

    def close(self) -> None:
        self._closed.set()
        self._changed.set()
        self._jobs.put(lambda: None)
        self._client.stop()
        self._client.close()

    # --- own membership -------------------------------------------------------------------------------

    def _register(self) -> None:
        path = f"{self._root}/members/{self._me.node}"
        try:
            self._client.create(path, self._me.to_bytes(), ephemeral=True)
        except NodeExistsError:
            other = Member.from_bytes(self._client.get(path)[0])
            if other.incarnation != self._me.incarnation:
                raise UnbrokenError(
                    f"a node named {self._me.node} is already part of the flow (pid {other.pid} on {other.host}). "
                    "Choose another name with --name, or wait until its session has ended."
                ) from None

    def _state_changed(self, state: str) -> None:
        log.info("ZooKeeper session: %s", state)
        if state == KazooState.CONNECTED and not self._closed.is_set():
            self._jobs.put(self._register)

    # --- watches --------------------------------------------------------------------------------------

    def _on_members(self, names: list[str]) -> None:
        self._jobs.put(self._refresh_members)

    def _refresh_members(self) -> None:
        self._members = read_members(self._client, self._root.rpartition("/")[2])
        self._callbacks.members(self._members)
        self._changed.set()

    def _on_layout(self, data: bytes | None, stat: Any) -> None:
        if data:
            self._callbacks.layout(Layout.from_json(json.loads(data)))
            self._changed.set()

    def _on_in_sync(self, data: bytes | None, stat: Any) -> None:
        if data:
            self._callbacks.in_sync(_in_sync_from(data, stat.version))

    # --- documents ------------------------------------------------------------------------------------

    def _replace_in_sync(self, proposal: ProposeInSync) -> None:
        path = f"{self._root}/in-sync"
        try:
            self._client.set(path, _in_sync_bytes(proposal.proposal), version=proposal.replaces)
        except BadVersionError:
            log.info("the in-sync set was changed by another member first")
        data, stat = self._client.get(path)
        self._callbacks.in_sync(_in_sync_from(data, stat.version))

    def _write_history(self, entry: bytes) -> None:
        root = f"{self._root}/history"
        self._client.create(f"{root}/e", entry, sequence=True)
        names = sorted(self._client.get_children(root))
        for name in names[:-HISTORY_LIMIT]:
            self._client.delete(f"{root}/{name}")

    def _work(self) -> None:
        while not self._closed.is_set():
            job = self._jobs.get()
            while not self._closed.is_set():
                try:
                    job()
                    break
                except (KazooException, KazooTimeoutError) as error:
                    log.warning("ZooKeeper is away (%s); trying again", type(error).__name__)
                    self._closed.wait(RETRY_S)
                except Exception:
                    log.exception("a change in ZooKeeper failed")
                    break

    # --- controller -----------------------------------------------------------------------------------

    def _candidate(self) -> None:
        while not self._closed.is_set():
            try:
                self._client.Election(f"{self._root}/controller", self._me.node).run(self._control)
            except (KazooException, KazooTimeoutError) as error:
                log.warning("election interrupted: %s", type(error).__name__)
            except Exception:
                log.exception("the controller failed")
            self._closed.wait(RETRY_S)

    def _control(self) -> None:
        """Run while elected: publish the layout that follows from who is there."""
        log.info("%s is the controller", self._me.node)
        while not self._closed.is_set() and self._client.state == KazooState.CONNECTED:
            self._changed.clear()
            members = read_members(self._client, self._root.rpartition("/")[2])
            self._decide(members)
            self._changed.wait(1.0)

    def _decide(self, members: dict[NodeId, Member]) -> None:
        path = f"{self._root}/layout"
        try:
            data, stat = self._client.get(path)
            current, version = Layout.from_json(json.loads(data)), stat.version
        except NoNodeError:
            current, version = None, -1
        decision = next_layout(self._topology, self._wanted, members.keys(), current)
        if decision is None:
            return
        layout, sentence = decision
        body = json.dumps(layout.to_json()).encode()
        try:
            if current is None:
                members_of_ingress = layout.nodes_of(INGRESS)
                first = InSync(1, next(iter(members_of_ingress)), frozenset(members_of_ingress), 0)
                self._client.create(f"{self._root}/in-sync", _in_sync_bytes(first))
                self._client.create(path, body)
            else:
                self._client.set(path, body, version=version)
        except (BadVersionError, NodeExistsError):
            return
        self.report(sentence)


def _in_sync_bytes(sync: InSync) -> bytes:
    return json.dumps({"term": sync.term, "leader": sync.leader, "members": sorted(sync.members)}).encode()


def _in_sync_from(data: bytes, version: int) -> InSync:
    value = json.loads(data)
    return InSync(int(value["term"]), value["leader"], frozenset(value["members"]), version)
