"""The ingress log of a simulated node: the log of a real one, on a simulated disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile, log_state
from unbroken.node.ingress.records import entry_bytes, read_segment
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.recovery import LogState
from unbroken_lab.sim.files import SimulatedFiles

SEGMENT_BYTES = 1_000
"""Small, so that segments are begun and deleted in runs of a few seconds."""

PINS = Path("/pins/log")


@dataclass
class LogPlace:
    """Where a machine keeps the ingress log of a replica."""

    files: SimulatedFiles
    directory: Path

    @classmethod
    def of(cls, files: SimulatedFiles, replica: ReplicaId) -> LogPlace:
        return cls(files, Path("/replicas") / str(replica) / "log")

    def open(self) -> IngressLogFile:
        return IngressLogFile(self.directory, self.files, SEGMENT_BYTES)

    @property
    def base(self) -> IngressBase:
        return IngressBase.read(self.directory, self.files) or IngressBase()

    def state(self, admission: Admission | None) -> LogState:
        return log_state(self.directory, admission, self.files)

    def lose_tail(self, count: int) -> int:
        """So many of the last entries are gone, although they were on disk; how many there were to lose."""
        base, lost = self.base.index, 0
        for name in reversed([name for name in self.files.names(self.directory) if name.endswith(".log")]):
            path = self.directory / name
            segment = read_segment(path, self.files)
            end = segment.end
            for entry in reversed(segment.entries):
                if lost == count or entry.index <= base:
                    break
                end -= len(entry_bytes(entry))
                lost += 1
            self.files.truncate(path, end)
            if end:
                break
        return lost


def pinned(log: IngressLogFile, files: SimulatedFiles) -> dict[str, bytes]:
    """The files of a log as a newcomer is given them."""
    log.pin(PINS)
    found = files.copied(PINS)
    files.clear(PINS)
    return found
