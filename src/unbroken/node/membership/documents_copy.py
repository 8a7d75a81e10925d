"""A node's own copy of the documents that its flow continues from if ZooKeeper loses them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.coordination.documents import FlowDocument
from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed
from unbroken.flow.program import Program
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.adoption import DiskReport, LogEnd
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout

FILE = "coordination.json"
REMEDY = "Delete it: it is written anew, and only `unbroken adopt` needs it."


@dataclass(frozen=True)
class _Known:
    """The content of the file."""

    layout: Layout | None = None
    sync: InSync | None = None
    flow: FlowDocument | None = None
    code: Mapping[int, Program] = field(default_factory=dict)


_KNOWN = Codec(_Known, "coordination-copy", readable=True)


@dataclass
class CoordinationCopy:
    """The last layout and in-sync set that a node has taken, the document of the flow, and the code since generation 1.

    Each is on disk before the node acts on it. Safe to use from several threads.
    """

    dirs: ReplicaDirs
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: _Known = field(default_factory=_Known)

    def __post_init__(self) -> None:
        try:
            self._known = _KNOWN.decode(unsealed(self._path, self._path.read_bytes(), REMEDY))
        except FileNotFoundError:
            return
        except Undecodable as error:
            raise Damaged(self._path, str(error), REMEDY) from error

    @property
    def _path(self) -> Path:
        return self.dirs.root / FILE

    @property
    def layout(self) -> Layout | None:
        return self._known.layout

    @property
    def flow(self) -> FlowDocument | None:
        return self._known.flow

    def keep_layout(self, layout: Layout) -> None:
        before = self.layout
        if before is None or before.run != layout.run or before.version < layout.version:
            self._keep(layout=layout)

    def keep_in_sync(self, sync: InSync) -> None:
        """Keep a set, unless a newer one of the run that this disk belongs to is known."""
        known = self._known.sync
        stale = known is not None and (known.term, known.version) > (sync.term, sync.version) and self.dirs.run().id
        if known != sync and not stale:
            self._keep(sync=sync)

    def keep_flow(self, document: FlowDocument) -> None:
        if self.flow != document:
            self._keep(flow=document)

    def keep_program(self, program: Program) -> None:
        """Keep the code of a generation: no file of the node has one that came by an upgrade, or may be edited."""
        known = self._known.code
        if known.get(program.generation) != program:
            self._keep(code={**known, program.generation: program})

    def program(self, generation: int) -> Program | None:
        return self._known.code.get(generation)

    def report(self, node: NodeId, running: bool, orders_lost: tuple[str, ...] = ()) -> DiskReport:
        """What this disk holds; of a running node, the replicas at work speak for themselves."""
        return DiskReport(
            node,
            self.dirs.identity(),
            self.dirs.run().id,
            self.layout,
            self._known.sync,
            {} if running else self.dirs.held(),
            LogEnd() if running else self.dirs.log_end(),
            running,
            orders_lost,
        )

    def _keep(self, **changed: Any) -> None:
        with self._lock:
            self._known = replace(self._known, **changed)
            replace_file(self._path, sealed(_KNOWN.encode(self._known)))
