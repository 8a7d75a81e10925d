"""States of a node's replicas that are pinned for others: hard links that nothing changes or removes."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unbroken.errors import UnbrokenError
from unbroken.node.replicas.directories import BASE, ReplicaDirs
from unbroken.node.replicas.transfers import PinAnswer, Pinner
from unbroken.protocol.combinations import copied_together
from unbroken.protocol.instructions import PinState
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import INGRESS, Topology
from unbroken.spark import checkpoints
from unbroken.transport.state.pins import Manifest, Pins

log = logging.getLogger(__name__)

UNREAD_S = 60.0
"""A pin that nobody reads from for this long belongs to a newcomer that is gone."""


@dataclass(frozen=True)
class Pinned:
    """A pin of this node: what it holds, and where."""

    manifest: Manifest
    directory: Path


def most_pins(topology: Topology, transfers: int) -> int:
    """Shards that may be copied from a node at a time: all of them, where copies are built as wholes."""
    return max(transfers, len(topology.placed_shards) if copied_together(topology) else 0)


class StatePins(Pinner[Pinned]):
    """Pins states: what the loop may drop at once, and the rest, which Spark keeps, on a thread.

    ``pin_log`` makes a directory a copy of the ingress log as it is at this moment.
    """

    def __init__(self, name: NodeId, dirs: ReplicaDirs, most: int, pin_log: Callable[[Path], None]) -> None:
        self._name = name
        self._dirs = dirs
        self._pin_log = pin_log
        self.pins = Pins(dirs.pins, most, UNREAD_S)

    def look(self) -> None:
        """Release pins that nobody reads from any more."""
        self.pins.expire(time.monotonic())

    def close(self) -> None:
        self.pins.clear()

    def pin(self, step: PinState, answer: PinAnswer[Pinned]) -> None:
        pin_id = uuid.uuid4().hex
        try:
            target = self.pins.directory(pin_id)
            self._link(step, target)
        except (OSError, UnbrokenError) as error:
            self.pins.release(pin_id)
            answer(f"{self._name} cannot pin {step.replica}: {error}")
            return
        name = f"pin-{step.replica}"
        arguments = (step, pin_id, target, answer)
        threading.Thread(target=self._finish, args=arguments, name=name, daemon=True).start()

    def _link(self, step: PinState, target: Path) -> None:
        """Take hold of what the loop may drop with its next event."""
        store, home = self._dirs.store, self._dirs.replicas / str(step.replica)
        units = [
            store.outbox_path(step.replica, stream, number)
            for stream, base, last in step.units
            for number in range(base + 1, last + 1)
        ]
        notes = [note for note in (home / BASE, *store.owed_notes(step.replica)) if note.exists()]
        for source in [*units, *notes]:
            kept = target / source.relative_to(home)
            kept.parent.mkdir(parents=True, exist_ok=True)
            os.link(source, kept)
        if step.replica.shard == INGRESS:
            self._pin_log(target / "log")

    def _finish(self, step: PinState, pin_id: str, target: Path, answer: PinAnswer[Pinned]) -> None:
        try:
            if step.replica.shard != INGRESS:
                source = self._dirs.checkpoint(step.replica)
                batches = checkpoints.batches_through(source, step.version)
                if batches:
                    checkpoints.pin(source, target / "checkpoint", batches)
            pinned = Pinned(self.pins.seal(pin_id, step.version, step.admission), target)
        except BaseException as error:
            self.pins.release(pin_id)
            log.warning("%s cannot be pinned: %s", step.replica, error)
            answer(f"{self._name} cannot pin {step.replica}: {error}")
        else:
            answer(pinned)
