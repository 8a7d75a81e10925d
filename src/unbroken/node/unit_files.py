"""What the loop does to the files of units: it gives them names, and hands over what takes longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from unbroken.data.staging import StagedUnit, Staging
from unbroken.data.unit_store import UnitStore
from unbroken.node.workers import Worker
from unbroken.protocol.events import Event, OwedNoted, ReplicaStopped
from unbroken.protocol.instructions import DropInbox, DropOutbox, NoteOwed, RepairUnit, StoreUnit
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS

UnitRows: TypeAlias = StagedUnit | ReplicaId | None
"""The rows of a unit that has arrived: its file, or the replica of this node that has them in its outbox; None with
an event of another kind."""


class UnitFiles:
    """Keeps, replaces and drops units of the replicas here. For the loop; notes are written by ``notes``.

    A replica whose units cannot be kept is stopped: a full disk, or a unit that is gone because the layout counts the
    replica no longer. Other replicas can continue, but the ingress cannot without its own (``cannot_keep``).
    """

    def __init__(
        self,
        store: UnitStore,
        staging: Staging,
        notes: Worker,
        post: Callable[[Event], None],
        cannot_keep: Callable[[OSError], None],
    ) -> None:
        self._store = store
        self._staging = staging
        self._notes = notes
        self._post = post
        self._cannot_keep = cannot_keep

    def keep(self, step: StoreUnit, rows: UnitRows) -> None:
        header, store = step.header, self._store
        number = header.number if step.number is None else step.number
        path = store.inbox_path(step.replica, header.stream, number)
        try:
            if isinstance(rows, ReplicaId):
                store.link(store.outbox_path(rows, header.stream, header.number), path, header)
            else:
                assert rows is not None
                self._staging.adopt(rows, path)
        except OSError as error:
            self._stop(step.replica, f"unit {header.number} of {header.stream}", error)

    def repair(self, step: RepairUnit, rows: UnitRows) -> None:
        """Replace a damaged file; whoever has a link to it keeps what is damaged, and finds that out."""
        header = step.header
        assert isinstance(rows, StagedUnit)
        try:
            self._staging.adopt(rows, self._store.outbox_path(step.replica, header.stream, header.number))
        except OSError as error:
            self._stop(step.replica, f"unit {header.number} of {header.stream}", error)

    def drop_inbox(self, step: DropInbox) -> None:
        for number in step.numbers:
            self._staging.drop(self._store.inbox_path(step.replica, step.stream, number))

    def drop_outbox(self, step: DropOutbox) -> None:
        for number in step.numbers:
            self._staging.drop(self._store.outbox_path(step.replica, step.stream, number))

    def note_owed(self, step: NoteOwed) -> None:
        self._notes.submit(lambda: self._note(step))

    def _note(self, step: NoteOwed) -> None:
        try:
            if self._store.note_owed(step):
                self._post(OwedNoted(step.replica, step.stream, step.owed))
        except OSError as error:
            self._stop(step.replica, f"the note of what is owed of {step.stream}", error)

    def _stop(self, replica: ReplicaId, what: str, error: OSError) -> None:
        if replica.shard == INGRESS:
            self._cannot_keep(error)
        else:
            self._post(ReplicaStopped(replica, f"{what} cannot be kept: {error}"))
