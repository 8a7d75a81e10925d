"""A node's dealings with ZooKeeper: its membership, the layout, the in-sync set, the controller's election.

Nothing on the data path waits for anything here: callbacks post events to the node's loop, and the calls
that change a document run on a thread of their own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.client import claim_root
from unbroken.coordination.documents import (
    LAYOUT,
    InSyncDocument,
    in_sync_from,
    root_of,
)
from unbroken.coordination.documents import Member as Member
from unbroken.coordination.documents import connect as connect
from unbroken.coordination.documents import read_history as read_history
from unbroken.coordination.documents import read_layout as read_layout
from unbroken.coordination.documents import read_members as read_members
from unbroken.coordination.election import Office
from unbroken.coordination.history import HISTORY_LIMIT, History
from unbroken.errors import UnbrokenError
from unbroken.node.jobs import Jobs
from unbroken.node.membership.candidacy import Candidacy
from unbroken.node.membership.controller import Controller, ControlSettings
from unbroken.node.membership.suspicions import SuspicionDocuments
from unbroken.node.replicas.programs import Programs
from unbroken.observe.status.node import CoordinationStatus
from unbroken.protocol.ingress.log import InSync, ProposeInSync
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Notice, Reported
from unbroken.protocol.values.notices.placement import DocumentForged
from unbroken.security.sealing import ForgedDocument
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause before a change is tried again while ZooKeeper is away."""

JOB_LIMIT = 10_000
"""Changes waiting for ZooKeeper. Notices are dropped long before, at HISTORY_LIMIT; the others are few."""

PARTS = ("members", "disks", "history", "stopped", "suspected", "caught-up", "draining", "renewed", "switched", "code")
"""Below these, documents come and go; they are made before anybody looks."""

REGISTERED_S = 5.0
"""How often a node looks whether its own entry is there; the session tells of its loss, but not of its deletion."""

LOST_DATA_S = 30.0
"""After so long without a connection a client takes a server for one that has lost its data, which refuses clients that
have seen more than it has. Several times the longest election of an ensemble."""

NAME_DEADLINE_S = 15.0
"""How long a node waits for its name: the session of a killed process ends after the session time-out."""

ATTEMPTS = 20
"""Times a proposal is repeated because the layout has just changed; that happens a few times in a row at most."""

REASON_LIMIT = 10_000
"""Characters kept of the reason why a replica stopped."""


@dataclass(frozen=True)
class Callbacks:
    """Called from kazoo's threads; each must return at once."""

    members: Callable[[dict[NodeId, Member]], None]
    layout: Callable[[Layout], None]
    in_sync: Callable[[InSync], None]
    tell: Callable[[Notice], None]
    """Make a notice known, in the history and elsewhere."""
    noted: Callable[[Reported], None]
    """Make an entry of the history known here, which was written together with what it reports."""
    linked: Callable[[], Collection[NodeId]]
    """The nodes that this one has been linked to."""
    connected: Callable[[], Collection[NodeId]]
    """The nodes that this one is linked to at this moment."""
    disk: Callable[[], bytes] = bytes
    """The document about this node's disk, for `unbroken adopt`."""
    superseded: Callable[[], frozenset[str]] = frozenset
    """The runs whose results are in the sinks, if a new run may add to them."""


class Coordination:
    """A node's view of ZooKeeper, and its candidacy for controller."""

    def __init__(
        self,
        client: KazooClient,
        flow: str,
        me: Member,
        programs: Programs,
        settings: ControlSettings,
        callbacks: Callbacks,
        name_deadline_s: float = NAME_DEADLINE_S,
    ) -> None:
        self._client = client
        self._flow = flow
        self._root = root_of(flow)
        self._me = me
        self._callbacks = callbacks
        self._name_deadline_s = name_deadline_s
        self._programs = programs
        self._history = History(client, flow, me.node)
        self._controller = Controller(
            client,
            flow,
            me.node,
            programs,
            settings,
            self._history,
            callbacks.tell,
            callbacks.noted,
            callbacks.linked,
            callbacks.connected,
            callbacks.superseded,
            me.run,
        )
        self._closed = threading.Event()
        self._office = Office(client, flow, me.node, callbacks.connected, self._history, callbacks.noted)
        self._candidacy = Candidacy(client, me.node, self._controller, self._office, self._closed)
        self._watches: dict[str, Any] = {}
        self._look_at = 0.0
        self._jobs: Jobs[Callable[[], None]] = Jobs(
            JOB_LIMIT, lambda: log.error("%d changes wait for ZooKeeper; one is dropped", JOB_LIMIT)
        )
        self._suspicions = SuspicionDocuments(client, flow, me.node, self._jobs.put)
        self._threads = [
            LastingThread(self._work, "zookeeper-jobs"),
            LastingThread(self._candidacy.stand, "controller"),
        ]

    @property
    def client(self) -> KazooClient:
        """The session with ZooKeeper, for those who keep other documents of the flow there."""
        return self._client

    def status(self) -> CoordinationStatus:
        """The session with ZooKeeper, and the work as a controller."""
        return CoordinationStatus(
            connected=bool(self._client.connected),
            controller=self._candidacy.elected,
            failovers=self._controller.failovers.counts(),
            recoveries=self._controller.failovers.recovered(),
        )

    def start(self) -> None:
        """Join the flow; raises UnbrokenError if the name is taken."""
        claim_root(self._client, self._flow)
        self._client.notice = self.report_forged
        self._register_at_last()
        self._client.add_listener(self._state_changed)
        # What is read first must not be older than what others acted on before this process began.
        self._client.sync(self._root)
        self._client.DataWatch(f"{self._root}/layout", self._on_layout)
        self._client.DataWatch(f"{self._root}/in-sync", self._on_in_sync)
        for thread in self._threads:
            thread.start()

    def belong(self, run: str) -> None:
        """From here on this node's disk belongs to ``run``: announce it, and refuse documents of others."""
        self._me = replace(self._me, run=run)
        self._controller.run = run
        self._jobs.put(self._announce)

    def propose(self, proposal: ProposeInSync, replica: ReplicaId) -> None:
        """Try to change the in-sync set for ``replica``; whatever the document says afterwards comes by callback."""
        self._jobs.put(lambda: self._replace_in_sync(proposal, replica))

    def report(self, notice: Notice) -> None:
        """Add a notice to the flow's history; given up when too many wait for ZooKeeper."""
        if self._jobs.qsize() >= HISTORY_LIMIT:
            return
        entry = self._history.entry(notice)
        self._jobs.put(lambda: self._history.write(entry))

    def report_forged(self, error: ForgedDocument) -> None:
        """Make known that a document was refused; called by the client, once for each."""
        log.error("%s", error)
        self.report(DocumentForged(error.path))

    def replica_stopped(self, replica: ReplicaId, reason: str) -> None:
        """Let the controller know that a replica of this node will not go on, so that nobody waits for it."""
        self._jobs.put(lambda: self._publish(f"stopped/{replica}", reason[:REASON_LIMIT].encode()))

    def caught_up(self, replica: ReplicaId) -> None:
        """Let the controller know that a joining replica of this node keeps up."""
        self._jobs.put(lambda: self._publish(f"caught-up/{replica}", b""))

    def switched(self, shard: ShardId) -> None:
        """Let the controller know that a shard's results have taken the place of its predecessor's."""
        self._jobs.put(lambda: self._publish(f"switched/{shard}", b""))

    def suspects(self, node: NodeId, reason: str) -> None:
        """Let the controller know that this node gets no answer from another one, for as long as that is so."""
        self._suspicions.add(node, reason[:REASON_LIMIT])

    def trusts(self, node: NodeId) -> None:
        """Take back what was said about another node."""
        self._suspicions.remove(node)

    def close(self) -> None:
        self._closed.set()
        self._candidacy.notify()
        self._jobs.put(lambda: None)
        self._client.stop()
        self._client.close()

    # --- own membership -------------------------------------------------------------------------------

    def _register_at_last(self) -> None:
        """Register, waiting for the entry that an earlier process of this name has left to vanish with its session."""
        deadline = time.monotonic() + self._name_deadline_s
        while True:
            try:
                self._register()
                return
            except UnbrokenError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)

    def _register(self) -> None:
        self._ensure_parts()
        path = f"{self._root}/members/{self._me.node}"
        try:
            self._client.create(path, self._me.to_bytes(), ephemeral=True)
        except NodeExistsError:
            self._claim(path)

    def _ensure_parts(self) -> None:
        """Make what documents are below, and watch it; also if all of it has vanished, and the watches with it."""
        for part in PARTS:
            self._client.ensure_path(f"{self._root}/{part}")
        for part, changed in (("members", self._on_members), ("suspected", self._on_suspected)):
            # Kazoo ends a watch whose path vanishes.
            if part not in self._watches or getattr(self._watches[part], "_stopped", True):
                self._watches[part] = self._client.ChildrenWatch(f"{self._root}/{part}", changed)

    def _keep_registered(self) -> None:
        """Register again if this node's entry was deleted, as by whoever deletes all documents of the flow."""
        if self._client.exists(f"{self._root}/members/{self._me.node}") is None:
            self._register()
            self._refresh_members()
            self._offer_disk()

    def _announce(self) -> None:
        """Let this node's entry say what it is now."""
        try:
            self._client.set(f"{self._root}/members/{self._me.node}", self._me.to_bytes())
        except NoNodeError:
            self._register()

    def _offer_disk(self) -> None:
        """The layout of this disk's run is missing: say what the disk holds, so that an operator can adopt it."""
        if not self._me.run or self._client.exists(f"{self._root}/layout") is not None:
            return
        path = f"{self._root}/disks/{self._me.node}"
        self._delete(f"disks/{self._me.node}")
        self._client.create(path, self._callbacks.disk(), ephemeral=True, makepath=True)

    def _claim(self, path: str) -> None:
        """Settle whose entry it is that has this node's name."""
        try:
            data, stat = self._client.get(path)
        except NoNodeError:
            self._register()
            return
        other = Member.from_bytes(data)
        if other.incarnation != self._me.incarnation:
            raise UnbrokenError(
                f"a node named {self._me.node} is already part of the flow (pid {other.pid} on {other.host}). "
                "Choose another name with --name, or wait until its session has ended."
            ) from None
        session = self._client.client_id
        if session is not None and stat.ephemeralOwner != session[0]:
            # Left by an earlier session of this node, with which it would vanish.
            self._client.delete(path)
            self._register()

    def _state_changed(self, state: str) -> None:
        log.info("ZooKeeper session: %s", state)
        if state == KazooState.SUSPENDED and not self._closed.is_set():
            patience = threading.Timer(LOST_DATA_S, self._accept_lost_data)
            patience.daemon = True
            patience.start()
        if state == KazooState.CONNECTED and not self._closed.is_set():
            self._jobs.put(self._register)
            self._jobs.put(self._offer_disk)
            self._suspicions.refresh()

    def _accept_lost_data(self) -> None:
        """Let a server that has lost its data answer this client. What it says is compared with the run of this disk,
        and documents of a lower version are ignored."""
        if not self._client.connected and not self._closed.is_set():
            log.warning("no ZooKeeper answers for %.0f s; one without its former data is accepted", LOST_DATA_S)
            self._client.last_zxid = 0

    # --- watches --------------------------------------------------------------------------------------

    def _on_members(self, names: list[str]) -> None:
        self._jobs.put(self._refresh_members)

    def _on_suspected(self, names: list[str]) -> None:
        self._candidacy.notify()
        if names:
            self._jobs.put(self._office.depose)

    def _refresh_members(self) -> None:
        self._callbacks.members(read_members(self._client, self._flow))
        self._candidacy.notify()

    def _on_layout(self, data: bytes | None, stat: Any) -> None:
        if data is None:
            # Not there yet, or lost; then the rest may be lost as well.
            self._jobs.put(self._register)
            self._jobs.put(self._offer_disk)
        if data:
            layout = LAYOUT.decode(data)
            if self._programs.knows(layout.generations):
                self._take_layout(layout)
            else:
                # Its code has to be read first, which this thread must not wait for.
                self._jobs.put(lambda: self._take_layout(layout))

    def _take_layout(self, layout: Layout) -> None:
        if self._me.run == layout.run:
            self._jobs.put(lambda: self._delete(f"disks/{self._me.node}"))
        self._controller.failovers.layout_changed(layout)
        self._callbacks.layout(layout)
        self._candidacy.notify()

    def _on_in_sync(self, data: bytes | None, stat: Any) -> None:
        if data:
            self._take_in_sync(in_sync_from(data, stat.version))
            self._candidacy.notify()

    def _take_in_sync(self, found: InSyncDocument) -> None:
        if self._me.run not in ("", found.run):
            return
        self._controller.failovers.in_sync_changed(found.sync)
        self._callbacks.in_sync(found.sync)

    # --- documents ------------------------------------------------------------------------------------

    def _replace_in_sync(self, proposal: ProposeInSync, replica: ReplicaId) -> None:
        """Replace the set, unless it has changed or the layout has given the proposer up.

        A log that the layout has given up is about to be deleted: nobody may go on with it alone.
        """
        path = f"{self._root}/in-sync"
        for _ in range(ATTEMPTS):
            data, stat = self._client.get(f"{self._root}/layout")
            layout = LAYOUT.decode(data)
            if replica not in layout.placement or self._me.run not in ("", layout.run):
                log.info("%s proposes no in-sync set any more, because it was replaced", replica)
                break
            known = in_sync_from(*self._document(path))
            proposed = InSyncDocument(proposal.proposal, known.run, known.base)
            together = self._client.transaction()
            together.check(f"{self._root}/layout", stat.version)
            together.set_data(path, proposed.to_bytes(), version=proposal.replaces - known.base)
            if not any(isinstance(answer, Exception) for answer in together.commit()):
                break
            if in_sync_from(*self._document(path)).sync.version != proposal.replaces:
                log.info("the in-sync set was changed by another member first")
                break
        self._take_in_sync(in_sync_from(*self._document(path)))

    def _document(self, path: str) -> tuple[bytes, int]:
        data, stat = self._client.get(path)
        return data, stat.version

    def _delete(self, name: str) -> None:
        try:
            self._client.delete(f"{self._root}/{name}")
        except NoNodeError:
            return

    def _publish(self, name: str, data: bytes) -> None:
        try:
            self._client.create(f"{self._root}/{name}", data, makepath=True)
        except NodeExistsError:
            return
        self._candidacy.notify()

    def _next_job(self) -> Callable[[], None]:
        """A change that waits for ZooKeeper, or, from time to time, a look at this node's own entry."""
        wait_s = self._look_at - time.monotonic()
        if wait_s > 0:
            try:
                return self._jobs.get(timeout=wait_s)
            except queue.Empty:
                pass
        self._look_at = time.monotonic() + REGISTERED_S
        return self._keep_registered

    def _work(self) -> None:
        while not self._closed.is_set():
            job = self._next_job()
            while not self._closed.is_set():
                try:
                    job()
                    break
                except NoNodeError as error:
                    # Waiting would not bring back what was deleted, and others wait behind this job.
                    log.warning("a document of flow %s is missing in ZooKeeper: %s", self._flow, error)
                    break
                except (KazooException, KazooTimeoutError) as error:
                    log.warning("ZooKeeper is unavailable (%s); trying again", type(error).__name__)
                    self._closed.wait(RETRY_S)
                except UnbrokenError as error:
                    log.error("%s", error)
                    break
                except BaseException:
                    log.exception("a change in ZooKeeper failed")
                    break
