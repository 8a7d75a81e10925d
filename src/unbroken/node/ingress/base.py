"""The base of an ingress log: the state that stands for all the entries before the ones that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.push.ledger import PushLedger
from unbroken.data.checksum import Damaged, sealed, unsealed
from unbroken.data.files import SYSTEM_FILES, FileSystem
from unbroken.node.ingress.steps import LaneBase

FILE_NAME = "base.json"

REMEDY = "Remove the directory of this log and restart the node: it copies the log from another ingress node."


@dataclass(frozen=True)
class IngressBase:
    """The state after a pulse whose units are with all consumers; what follows it can be done again from here.

    ``index`` is the entry of the pulse, ``positions`` where it ends in every source. A push that was logged before the
    pulse but is cut by a later one is in ``waiting``, by source, with the index of its entry: those entries are still
    needed, although they come before the base. ``ledgers`` (`PushLedger.known` by source), ``rows`` and ``bad_rows``
    cover everything up to ``index``. So do ``producers``, by source that asks for heartbeats: those that have pushed
    and not taken leave.

    Where units do not end with pulses, ``lanes`` has by source how far that had come with the pulse. Rows that waited
    for their unit to be whole are not part of it: the units they are in are with all consumers.
    """

    index: int = 0
    pulse: int = 0
    positions: Mapping[str, Any] = field(default_factory=dict)
    last_cut_ms: int = 0
    waiting: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ledgers: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    rows: int = 0
    bad_rows: int = 0
    finished: bool = False
    generation: int = 1
    lanes: Mapping[str, LaneBase] = field(default_factory=dict)
    producers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def units(self) -> dict[str, int]:
        """Where units do not end with pulses, by source: the last one that may have a row from before the base."""
        return {source: lane.unit for source, lane in self.lanes.items()}

    @property
    def done_through(self) -> int:
        """Entries up to this one are not needed any more."""
        return min([self.index, *(index - 1 for indexes in self.waiting.values() for index in indexes)])

    def ledger(self, source: str) -> PushLedger:
        """What the log up to the base says about the producers of a source."""
        return PushLedger.of(self.ledgers.get(source, ()))

    def write(self, directory: Path, files: FileSystem = SYSTEM_FILES) -> None:
        """Replace the base in ``directory``, at once and for good: entries before it are deleted next."""
        files.replace(directory / FILE_NAME, sealed(BASE.encode(self)))

    @classmethod
    def read(cls, directory: Path, files: FileSystem = SYSTEM_FILES) -> IngressBase | None:
        """The base in ``directory``; None if the log is kept from its first entry on."""
        path = directory / FILE_NAME
        try:
            return BASE.decode(unsealed(path, files.read(path), REMEDY))
        except FileNotFoundError:
            return None
        except Undecodable as error:
            raise Damaged(path, str(error), REMEDY) from None


BASE = Codec(IngressBase, "ingress-base", readable=True)
