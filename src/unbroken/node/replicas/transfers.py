"""A replica's state on its way: pinned here for other nodes, fetched from them for replicas that join here."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unbroken.errors import UnbrokenError
from unbroken.node.replicas.directories import BASE
from unbroken.protocol.events import FetchFailed, PinAsked, StateArrived
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import FetchState, PinState, RefusePin
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.spark import checkpoints
from unbroken.transport.state.donor_calls import TransferError, ask, release_pin
from unbroken.transport.state.pins import Manifest, PinError, Pins
from unbroken.transport.state.transfer import Fetch

if TYPE_CHECKING:
    from unbroken.node.node import Node

log = logging.getLogger(__name__)

PIN_DEADLINE_S = 60.0
"""How long a donor may take to pin its state; linking and hashing 1 GB takes a few seconds."""

RELEASE_S = 2.0

UNREAD_S = 60.0
"""A pin that nobody reads from for this long belongs to a newcomer that is gone."""


@dataclass(frozen=True)
class Pinned:
    """A pin of this node: what it holds, and where."""

    manifest: Manifest
    directory: Path


def _most_pins(node: Node) -> int:
    """Shards that may be copied from a node at a time: all of them, where copies are built as wholes."""
    topology = node.programs.topology
    return max(node.settings.transfers, len(topology.placed_shards) if topology.whole else 0)


class Transfers:
    """Carries out what the protocol says about state that moves between nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pins = Pins(node.dirs.pins, _most_pins(node), UNREAD_S)
        self._asked: dict[int, Future[Pinned]] = {}
        self._tickets = itertools.count(1)
        self._fetches: dict[ReplicaId, threading.Event] = {}
        self._adopting = threading.Lock()
        self.under_way: dict[ReplicaId, Fetch] = {}

    # --- donor ----------------------------------------------------------------------------------------

    def asked_for(self, shard: str, newcomer: NodeId, least: int, needs: Mapping[str, int]) -> dict[str, Any]:
        """Pin the present state of ``shard`` for ``newcomer`` and give the manifest; called by the Flight server."""
        units = tuple((StreamId.parse(stream), int(unit)) for stream, unit in needs.items())
        return self._pinned(ShardId.parse(shard), newcomer, least, units).manifest.to_json()

    def pin_here(self, shard: ShardId) -> Pinned:
        """Pin the present state of ``shard`` for this node's own use; to be released by the caller."""
        return self._pinned(shard, self._node.name)

    def _pinned(
        self, shard: ShardId, newcomer: NodeId, least: int = 0, needs: tuple[tuple[StreamId, int], ...] = ()
    ) -> Pinned:
        ticket = next(self._tickets)
        future: Future[Pinned] = Future()
        self._asked[ticket] = future
        try:
            self._node.ask(PinAsked(shard, newcomer, ticket, least, needs))
            return future.result(timeout=PIN_DEADLINE_S)
        except (FutureTimeoutError, TimeoutError):
            raise PinError(f"{self._node.name} did not pin {shard} within {PIN_DEADLINE_S:.0f} s") from None
        finally:
            self._asked.pop(ticket, None)

    def pin(self, step: PinState) -> None:
        """Take hold of what the loop may drop with its next event; the rest, which Spark keeps, on a thread."""
        future = self._asked.get(step.ticket)
        if future is None:
            return
        pin_id = uuid.uuid4().hex
        dirs, store = self._node.dirs, self._node.store
        try:
            target = self.pins.directory(pin_id)
            for stream, base, last in step.units:
                for number in range(base + 1, last + 1):
                    source = store.outbox_path(step.replica, stream, number)
                    kept = target / source.relative_to(dirs.replicas / str(step.replica))
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    os.link(source, kept)
            home = dirs.replicas / str(step.replica)
            for note in [home / BASE, *store.owed_notes(step.replica)]:
                if note.exists():
                    kept = target / note.relative_to(home)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    os.link(note, kept)
            if step.replica.shard == INGRESS and self._node.ingress is not None:
                self._node.ingress.pin(target / "log")
        except (OSError, UnbrokenError) as error:
            self.pins.release(pin_id)
            future.set_exception(PinError(f"{self._node.name} cannot pin {step.replica}: {error}"))
            return
        name = f"pin-{step.replica}"
        arguments = (step, pin_id, target, future)
        threading.Thread(target=self._finish_pin, args=arguments, name=name, daemon=True).start()

    def refuse(self, step: RefusePin) -> None:
        future = self._asked.get(step.ticket)
        if future is not None:
            future.set_exception(PinError(step.reason))

    def _finish_pin(self, step: PinState, pin_id: str, target: Path, future: Future[Pinned]) -> None:
        try:
            if step.replica.shard != INGRESS:
                source = self._node.dirs.checkpoint(step.replica)
                batches = checkpoints.batches_through(source, step.version)
                if batches:
                    checkpoints.pin(source, target / "checkpoint", batches)
            facts: dict[str, Any] = {"replica": str(step.replica), "version": step.version}
            if step.admission is not None:
                facts["admission"] = asdict(step.admission)
            future.set_result(Pinned(self.pins.seal(pin_id, facts), target))
        except BaseException as error:
            self.pins.release(pin_id)
            log.warning("%s cannot be pinned: %s", step.replica, error)
            future.set_exception(PinError(f"{self._node.name} cannot pin {step.replica}: {error}"))

    # --- newcomer -------------------------------------------------------------------------------------

    def fetch(self, step: FetchState) -> None:
        stop = threading.Event()
        self._fetches[step.replica] = stop
        name = f"fetch-{step.replica}"
        threading.Thread(target=self._fetch, args=(step, stop), name=name, daemon=True).start()

    def abandon(self, replica: ReplicaId) -> None:
        stop = self._fetches.pop(replica, None)
        if stop is not None:
            with self._adopting:  # whoever goes on with what is there must not find it replaced
                stop.set()

    def look(self) -> None:
        """Let go of pins that nobody reads from any more."""
        self.pins.expire(time.monotonic())

    def close(self) -> None:
        for stop in self._fetches.values():
            stop.set()
        self.pins.clear()

    def _fetch(self, step: FetchState, stop: threading.Event) -> None:
        try:
            size, facts = self._copy(step, stop)
            if not self._adopted(step, stop):
                return
            admission = Admission(**facts["admission"]) if "admission" in facts else None
            state = self._node.dirs.state(step.replica, admission)
            self._node.post(StateArrived(step.replica, state, step.donor, size))
        except (UnbrokenError, OSError) as error:
            if not stop.is_set():
                log.warning("the state of %s did not come from %s: %s", step.replica, step.donor, error)
                self._node.post(FetchFailed(step.replica, step.donor, str(error)))
        except BaseException as error:
            log.exception("the state of %s cannot be fetched", step.replica)
            self._node.post(FetchFailed(step.replica, step.donor, f"{type(error).__name__}: {error}"))
        finally:
            self.under_way.pop(step.replica, None)

    def _adopted(self, step: FetchState, stop: threading.Event) -> bool:
        """Put a copy in its place, on disk before it is there and there on disk before it counts; False if it is not
        wanted any more."""
        dirs = self._node.dirs
        if self._is_own(step):
            return not stop.is_set()
        # A log is acknowledged as soon as it is here, and a base in it relies on the entries beside it.
        forced = self._node.settings.durability == "sync" or step.replica.shard == INGRESS
        source = dirs.completed(step.replica, step.held, forced)
        with self._adopting:
            # The loop may wait for this lock: nothing is forced here.
            wanted = not stop.is_set()
            if wanted:
                dirs.adopt(step.replica, source)
        if not wanted and step.held:
            shutil.rmtree(source, ignore_errors=True)
        if wanted and forced:
            dirs.force_names()
        return wanted

    def _is_own(self, step: FetchState) -> bool:
        """Whether the state is that of the copy that this node holds."""
        return step.donor == self._node.name and step.shard == step.replica.shard

    def _copy(self, step: FetchState, stop: threading.Event) -> tuple[int, Mapping[str, Any]]:
        """Bring the donor's files into the incoming directory: bytes that came over the wire, and the donor's facts."""
        target = self._node.dirs.incoming(step.replica)
        if self._is_own(step):
            return 0, {}
        if step.donor is None:
            shutil.rmtree(target, ignore_errors=True)
            return self._node.restore_snapshot(step.replica, target), {}
        donor = self._node.members.get(step.donor)
        if donor is None:
            raise TransferError(f"{step.donor} is not there any more")
        needs = {str(stream): unit for stream, unit in step.needs}
        question = {"shard": str(step.shard), "node": self._node.name, "least": step.least, "needs": needs}
        token = self._node.token
        manifest = Manifest.from_json(ask(donor.address, token, "pin", question, PIN_DEADLINE_S + 5))
        target.mkdir(parents=True, exist_ok=True)
        rate = self._node.settings.transfer_rate
        fetch = Fetch(donor.address, token, manifest, target, rate, stop)
        self.under_way[step.replica] = fetch
        try:
            fetched = fetch.run().fetched
            if step.shard != step.replica.shard:
                # What the predecessor produced is its own; its successor begins with the state alone.
                for own in ("outbox", "owed"):
                    shutil.rmtree(target / own, ignore_errors=True)
            return fetched, manifest.facts
        finally:
            try:
                release_pin(donor.address, token, manifest.pin, RELEASE_S)
            except TransferError as error:
                log.info("the pin at %s was not released, it will expire: %s", step.donor, error)
