"""Measure what forcing the ingress log to disk costs: the time from an entry to its commit, for each durability.

One member, and two that take turns over queues in this process: what is measured is disks and threads, not a network.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import tempfile
import threading
import time
from pathlib import Path

from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.log_writer import LogWriter
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.ingress.log import IngressLog, IngressMessage, InSync
from unbroken.protocol.instructions import CommitEntry, Instruction, PersistEntry, Send
from unbroken.protocol.values.ids import NodeId

DEADLINE_S = 60.0

Event = int | bytes | tuple[NodeId, IngressMessage] | None
"""What a loop takes: so many entries are on disk, a body to append, a message, or the end."""


class Member:
    """A member of the log with its disk and a loop of its own."""

    def __init__(self, name: NodeId, sync: InSync, directory: Path, forced: bool) -> None:
        self.log = IngressLog(name, sync)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.peers: dict[NodeId, Member] = {}
        self.committed: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.file = IngressLogFile(directory / name)
        self.writer = LogWriter(forced, self.events.put, self._failed, tell=print, worker=ThreadWorker("ingress-log"))
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self.writer.start(self.file)
        self.thread.start()

    def close(self) -> None:
        self.events.put(None)
        self.thread.join(DEADLINE_S)
        self.writer.close()

    def _failed(self, error: OSError) -> None:
        raise SystemExit(str(error))

    def _loop(self) -> None:
        while (event := self.events.get()) is not None:
            if isinstance(event, int):
                self._carry_out(self.log.persisted(event))
            elif isinstance(event, bytes):
                self._carry_out(self.log.append(event, pulse=self.log.last_pulse + 1))
            else:
                self._carry_out(self.log.receive(*event))

    def _carry_out(self, steps: list[Instruction]) -> None:
        for step in steps:
            if isinstance(step, PersistEntry):
                self.writer.write(step.entry)
            elif isinstance(step, Send) and isinstance(step.message, IngressMessage):
                self.peers[step.to].events.put((self.log.me, step.message))
            elif isinstance(step, CommitEntry):
                self.committed.put(time.perf_counter())


def measure(directory: Path, members: int, forced: bool, size: int, count: int, together: int) -> list[float]:
    """Milliseconds from an entry to its commit, with so many entries on their way at once."""
    names = [f"m{number}" for number in range(members)]
    sync = InSync(1, names[0], frozenset(names), 0)
    nodes = {name: Member(name, sync, directory, forced) for name in names}
    for node in nodes.values():
        node.peers = nodes
        node.start()
    leader, took = nodes[names[0]], []
    for _ in range(count):
        began = time.perf_counter()
        for _ in range(together):
            leader.events.put(b"x" * size)
        took += [(leader.committed.get(timeout=DEADLINE_S) - began) * 1000 for _ in range(together)]
    for node in nodes.values():
        node.close()
    return sorted(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure; a temporary one if left out")
    parser.add_argument("--pulses", type=int, default=300)
    options = parser.parse_args()
    for members in (1, 2):
        for size, together in ((300, 1), (100_000, 1), (1_000, 32)):
            for forced in (False, True):
                with tempfile.TemporaryDirectory(dir=options.dir) as place:
                    took = measure(Path(place), members, forced, size, options.pulses, together)
                p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
                what = f"{members} member(s), {together:2} x {size:6} bytes, {'sync' if forced else 'memory':6}"
                print(f"{what}: p50 {p50:6.2f} ms, p99 {p99:6.2f} ms")


if __name__ == "__main__":
    main()
