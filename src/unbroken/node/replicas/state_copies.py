"""States that are copied from other nodes or from snapshots, file by file, on threads of their own."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from unbroken.flow.settings import Settings
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.replicas.pin_requests import PIN_DEADLINE_S
from unbroken.node.replicas.transfers import Copied, Copier
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import FetchState
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.recovery import StoredReplica
from unbroken.transport.calls import PinQuestion
from unbroken.transport.state.donor_calls import TransferError, ask_pin, release_pin
from unbroken.transport.state.transfer import Fetch

log = logging.getLogger(__name__)

RELEASE_S = 2.0

LEAVE_S = 30.0
"""How long a copy waits for the end of the same replica that was dropped here before it came."""


class StateCopies(Copier[Path]):
    """Copies states into the incoming directory of a replica, and puts them in their place.

    ``address_of`` knows where a node is at this moment, None if it is gone; ``restore`` brings the last snapshot of a
    replica's shard to a directory, and returns its size. ``await_leave`` waits until the same replica, dropped before,
    has ended here; False if it has not in time.
    """

    def __init__(
        self,
        name: NodeId,
        dirs: ReplicaDirs,
        settings: Settings,
        token: str,
        address_of: Callable[[NodeId], str | None],
        restore: Callable[[ReplicaId, Path], int],
        await_leave: Callable[[ReplicaId, float], bool],
    ) -> None:
        self._name = name
        self._dirs = dirs
        self._settings = settings
        self._token = token
        self._address_of = address_of
        self._restore = restore
        self._await_leave = await_leave
        self.under_way: dict[ReplicaId, Fetch] = {}

    def copy(
        self, step: FetchState, abandoned: threading.Event, done: Callable[[Copied[Path] | BaseException], None]
    ) -> None:
        arguments = (step, abandoned, done)
        threading.Thread(target=self._run, args=arguments, name=f"fetch-{step.replica}", daemon=True).start()

    def complete(self, step: FetchState, place: Path) -> Path:
        if not self._await_leave(step.replica, LEAVE_S):
            raise TransferError(f"{step.replica} was here before, and has not ended within {LEAVE_S:.0f} s")
        return self._dirs.completed(step.replica, step.held, self._forced(step))

    def adopt(self, step: FetchState, place: Path) -> None:
        self._dirs.adopt(step.replica, place)

    def discard(self, step: FetchState, place: Path) -> None:
        if step.held:
            shutil.rmtree(place, ignore_errors=True)

    def settle(self, step: FetchState) -> None:
        if self._forced(step):
            self._dirs.force_names()

    def state(self, step: FetchState, admission: Admission | None) -> StoredReplica:
        return self._dirs.state(step.replica, admission)

    def _forced(self, step: FetchState) -> bool:
        """Whether a copy has to be on disk before it counts."""
        # A log is acknowledged as soon as it is here, and a base in it relies on the entries beside it.
        return self._settings.durability == "sync" or step.replica.shard == INGRESS

    def _run(
        self, step: FetchState, abandoned: threading.Event, done: Callable[[Copied[Path] | BaseException], None]
    ) -> None:
        found: Copied[Path] | BaseException
        try:
            found = self._copied(step, abandoned)
        except BaseException as error:
            found = error
        try:
            done(found)
        finally:
            self.under_way.pop(step.replica, None)

    def _copied(self, step: FetchState, abandoned: threading.Event) -> Copied[Path]:
        if step.donor == self._name and step.shard == step.replica.shard:
            return Copied(0)
        size, admission = self._fetch(step, abandoned)
        return Copied(size, self._dirs.incoming(step.replica), admission)

    def _fetch(self, step: FetchState, abandoned: threading.Event) -> tuple[int, Admission | None]:
        """Bring the donor's files into the incoming directory: bytes that came over the wire, and the admission."""
        target = self._dirs.incoming(step.replica)
        if step.donor is None:
            shutil.rmtree(target, ignore_errors=True)
            return self._restore(step.replica, target), None
        address = self._address_of(step.donor)
        if address is None:
            raise TransferError(f"{step.donor} is unavailable")
        question = PinQuestion(step.shard, self._name, step.least, dict(step.needs))
        manifest = ask_pin(address, self._token, question, PIN_DEADLINE_S + 5)
        target.mkdir(parents=True, exist_ok=True)
        rate = self._settings.transfer_rate
        fetch = Fetch(address, self._token, manifest, target, rate, abandoned)
        self.under_way[step.replica] = fetch
        try:
            fetched = fetch.run().fetched
            if step.shard != step.replica.shard:
                # What the predecessor produced is its own; its successor begins with the state alone.
                for own in ("outbox", "owed"):
                    shutil.rmtree(target / own, ignore_errors=True)
            return fetched, manifest.admission
        finally:
            try:
                release_pin(address, self._token, manifest.pin, RELEASE_S)
            except TransferError as error:
                log.info("the pin at %s was not released, it will expire: %s", step.donor, error)
