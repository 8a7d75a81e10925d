"""The ingress log of a node on a simulated disk: its process ends, or the power fails, at any operation."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from unbroken.data.checksum import Damaged
from unbroken.data.files import FileSystem
from unbroken.errors import InvariantViolation, require
from unbroken.node.ingress import log_file
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS
from unbroken_lab.sim.files import Interrupted, SimulatedFiles
from unbroken_lab.sim.ingress_log import LogPlace

SEEDS = 150
LIVES = 8
LONGEST_FUSE = 25


def live_and_die(seed: int) -> None:
    """Several processes, one after the other, write to one log; each ends at some operation, and finds what was forced
    before."""
    random = Random(seed)
    files = SimulatedFiles(random)
    place = LogPlace.of(files, ReplicaId(INGRESS, 0))
    written: dict[int, Entry] = {}
    forced = 0
    for life in range(1, LIVES + 1):
        state = place.state(None)
        found = {entry.index: entry for entry in state.entries}
        last = max(found, default=state.committed)
        require(last >= forced, f"{last} of {forced} entries are left")
        require(all(written[index] == entry for index, entry in found.items()), "an entry is another one")
        log, forced = place.open(), last
        files.fuse = random.randint(0, LONGEST_FUSE)
        try:
            while True:
                group = [
                    Entry(last + step, life, b"%d" % life * 40, last + step) for step in range(1, random.randint(2, 4))
                ]
                last = group[-1].index
                written |= {entry.index: entry for entry in group}
                log.append(*group)
                log.force()
                forced = last
                if random.random() < 0.5:
                    log.rebase(IngressBase(forced, forced))
        except Interrupted:
            files.fuse = None
            if random.random() < 0.5:
                files.power_failure()


def test_what_was_forced_is_found_by_the_next_process() -> None:
    for seed in range(SEEDS):
        live_and_die(seed)


def keep_torn_entries(patch: pytest.MonkeyPatch) -> None:
    def leave(path: Path, files: FileSystem) -> None:
        """The torn entry stays before the files that follow."""

    patch.setattr(log_file, "_cut_torn_entry", leave)


def delete_before_the_base(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: IngressLogFile, base: IngressBase) -> bool:
        for path in self._needless(base.done_through):
            self._files.remove(path)
        base.write(self._directory, self._files)
        self._base = base
        return True

    patch.setattr(IngressLogFile, "rebase", hasty)


def never_force(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IngressLogFile, "force", lambda self: None)


@pytest.mark.parametrize("broken", [keep_torn_entries, delete_before_the_base, never_force])
def test_a_log_with_another_order_of_writes_is_found(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    assert callable(broken)
    broken(monkeypatch)
    with pytest.raises((Damaged, InvariantViolation)):
        test_what_was_forced_is_found_by_the_next_process()
