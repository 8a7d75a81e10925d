"""A node's own copy of the documents that its flow continues from if ZooKeeper loses them."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed
from unbroken.flow.program import Program
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.adoption import DiskReport, LogEnd
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout

FILE = "coordination.json"
REMEDY = "Delete it: it is written anew, and only `unbroken adopt` needs it."


@dataclass
class CoordinationCopy:
    """The last layout and in-sync set that a node has taken, the topology document, and the code since generation 1.

    Each is on disk before the node acts on it. Safe to use from several threads.
    """

    dirs: ReplicaDirs
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._known = json.loads(unsealed(self._path, self._path.read_bytes(), REMEDY))
        except FileNotFoundError:
            return
        except ValueError as error:
            raise Damaged(self._path, str(error), REMEDY) from error

    @property
    def _path(self) -> Path:
        return self.dirs.root / FILE

    @property
    def layout(self) -> Layout | None:
        known = self._known.get("layout")
        return None if known is None else Layout.from_json(known)

    @property
    def topology(self) -> dict[str, Any] | None:
        """The document about the run and its sinks."""
        return self._known.get("topology")

    def keep_layout(self, layout: Layout) -> None:
        before = self.layout
        if before is None or before.run != layout.run or before.version < layout.version:
            self._keep("layout", layout.to_json())

    def keep_in_sync(self, sync: InSync) -> None:
        """Keep a set, unless a newer one of the run that this disk belongs to is known."""
        value, known = [sync.term, sync.leader, sorted(sync.members), sync.version], self._known.get("sync")
        stale = known is not None and (known[0], known[3]) > (sync.term, sync.version) and self.dirs.run().id
        if known != value and not stale:
            self._keep("sync", value)

    def keep_topology(self, document: dict[str, Any]) -> None:
        if self.topology != document:
            self._keep("topology", document)

    def keep_program(self, program: Program) -> None:
        """Keep the code of a generation: no file of the node has one that came by an upgrade, or may be edited."""
        known = self._known.get("code", {})
        if known.get(str(program.generation)) != program.to_json():
            self._keep("code", {**known, str(program.generation): program.to_json()})

    def program(self, generation: int) -> Program | None:
        known = self._known.get("code", {}).get(str(generation))
        return None if known is None else Program.from_json(known)

    def report(self, node: NodeId, running: bool, orders_lost: tuple[str, ...] = ()) -> DiskReport:
        """What this disk holds; of a running node, the replicas at work speak for themselves."""
        sync = self._known.get("sync")
        return DiskReport(
            node,
            self.dirs.identity(),
            self.dirs.run().id,
            self.layout,
            None if sync is None else InSync(int(sync[0]), sync[1], frozenset(sync[2]), int(sync[3])),
            {} if running else self.dirs.held(),
            LogEnd() if running else self.dirs.log_end(),
            running,
            orders_lost,
        )

    def _keep(self, name: str, value: object) -> None:
        with self._lock:
            self._known = {**self._known, name: value}
            replace_file(self._path, sealed(json.dumps(self._known).encode()))
