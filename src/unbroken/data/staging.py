"""Units that have arrived and wait for the protocol's decision: files in a directory next to those of the replicas.

The thread of a link writes them while they arrive. The loop sees headers, and adopts a file by a rename. What it drops
it renames, too: to unlink a file of 100 kB takes a hundred times as long, and another thread does that.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from unbroken.data.checksum import Damaged
from unbroken.data.unit_store import UnitCheck, UnitStore
from unbroken.protocol.values.units import UnitHeader

log = logging.getLogger(__name__)


HELD_BYTES = 64 << 20
"""What is held in memory of a unit while another link writes a copy of it; links bring the same units side by side."""


def unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


@dataclass
class StagedUnit:
    """A whole, verified unit on disk, or the ``error`` that kept it from being written; the loop's from here on.

    ``linked`` if it shares its bytes with a copy that was on this disk before.
    """

    header: UnitHeader
    path: Path
    size: int
    error: OSError | None = None
    linked: bool = False
    adopted: bool = False


class Staging:
    """The files of units that belong to no replica: those that have arrived, and those that are to be removed.

    A second copy of a unit that is on this disk is linked to the first instead of being written. Copies are known by
    their whole header, which has the digest of the rows.

    ``remove`` unlinks a file that nothing refers to; it need not have done so when it returns.

    Invariant: a staged unit has a file of its own name, whatever becomes of the copy that it was linked to.
    """

    def __init__(self, directory: Path, store: UnitStore, remove: Callable[[Path], None] = unlink) -> None:
        self._directory = directory
        self._store = store
        self._remove = remove
        self._names = itertools.count(1)

    def open(self) -> None:
        """Begin without what an earlier process has left."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)

    def receive(self, header: UnitHeader, peer: str) -> IncomingUnit:
        """Where the pieces of a unit go that begins to arrive."""
        return IncomingUnit(self._store, header, self._name("arrow"), peer)

    def adopt(self, staged: StagedUnit, target: Path) -> None:
        """Make the unit the file at ``target``; OSError if it could not be written, or cannot be moved there."""
        if staged.error is not None:
            raise staged.error
        source = staged.path
        if staged.adopted:
            # Wanted twice: in an inbox, and in the place of what is damaged in an outbox.
            source = self._name("arrow")
            os.link(staged.path, source)
        self._store.adopt(source, target, staged.header)
        if staged.linked or staged.adopted:
            unlink(source)  # a rename onto another name of the same file leaves both
        staged.path, staged.adopted = target, True

    def settle(self, staged: StagedUnit) -> None:
        """The event of a unit has been handled: if the unit was not adopted, it is not wanted."""
        if not staged.adopted:
            self._store.copies.forget(staged.path)
            self._remove(staged.path)

    def drop(self, path: Path) -> None:
        """Take a unit out of an inbox or outbox; another one can take its place at once."""
        doomed = self._name("dropped")
        try:
            self._store.release(path, doomed)
        except FileNotFoundError:
            return
        self._remove(doomed)

    def _name(self, kind: str) -> Path:
        return self._directory / f"{next(self._names)}.{kind}"


class IncomingUnit:
    """A unit whose pieces arrive, on the thread of its link.

    Of copies that arrive at the same time the first is written. The others wait for its end in memory, up to a bound.
    A disk that does not take them is no reason to end the link: whether the unit is wanted here, and what follows if
    it cannot be kept, is the protocol's to decide.
    """

    def __init__(self, store: UnitStore, header: UnitHeader, path: Path, peer: str) -> None:
        self._store = store
        self._copies = store.copies
        self._header = header
        self._path = path
        self._check = UnitCheck(f"unit {header.number} of {header.stream} from {peer}")
        self._file: BinaryIO | None = None
        self._writes = False
        self._held: list[pa.Buffer] = []
        self._size = 0
        self._error: OSError | None = None
        self._linked = self._link()
        if not self._linked and self._copies.begin(header):
            self._write()

    def add(self, piece: pa.Buffer) -> None:
        """Take the next piece; raises Damaged if it shows that the unit is."""
        self._check.add(piece)
        self._size += piece.size
        if self._linked or self._error is not None:
            return
        self._held.append(piece)
        if self._writes or self._size > HELD_BYTES:
            self._write()

    def finish(self) -> StagedUnit:
        """All pieces are here; raises Damaged if they are not the unit as it was written."""
        self._check.end()
        if self._held:
            # The copy that was being written may be whole by now.
            self._linked = self._link()
            if not self._linked:
                self._write()
            self._held = []
        if self._file is not None:
            try:
                self._file.close()
                self._copies.keep(self._header, self._path)
            except OSError as error:
                self._fail(error)
        self._ends()
        return StagedUnit(self._header, self._path, self._size, self._error, self._linked)

    def abandon(self) -> None:
        """The rest does not come, or is of no use."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._held = []
        self._copies.forget(self._path)
        unlink(self._path)
        self._ends()

    def _write(self) -> None:
        """Write the pieces that are held, and from here on each as it comes."""
        self._writes = True
        try:
            if self._file is None:
                self._file = self._path.open("wb")
            for piece in self._held:
                self._file.write(memoryview(piece))
            self._held = []
        except OSError as error:
            self._fail(error)

    def _ends(self) -> None:
        """Let other copies be written, if this one has kept them from it."""
        if self._writes:
            self._writes = False
            self._copies.end(self._header)

    def _link(self) -> bool:
        """Share the bytes of a copy that is here; False if there is none.

        Its bytes are verified: this unit may be meant to take the place of exactly these.
        """
        copy = self._copies.find(self._header)
        if copy is None:
            return False
        try:
            os.link(copy, self._path)
            self._store.read(self._path)
        except FileNotFoundError:
            return False  # it has been dropped since, or moved
        except (Damaged, OSError):
            unlink(self._path)
            return False
        return True

    def _fail(self, error: OSError) -> None:
        log.warning("a unit that arrives cannot be written: %s", error)
        self._error = error
        self.abandon()
        self._file = None
