"""The base of an ingress log: the state that stands for all the entries before the ones that are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unbroken.connectors.push.ledger import PushLedger
from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed

FILE_NAME = "base.json"

REMEDY = "Remove the directory of this log and restart the node: it copies the log from another ingress node."


@dataclass(frozen=True)
class IngressBase:
    """The state after a pulse whose units are with all consumers; what follows it can be done again from here.

    ``index`` is the entry of the pulse, ``positions`` where it ends in every source. A push that was logged before the
    pulse but is cut by a later one is in ``waiting``, by source, with the index of its entry: those entries are still
    needed, although they come before the base. ``ledgers`` (`PushLedger.to_json` by source), ``rows`` and ``bad_rows``
    cover everything up to ``index``. So do ``producers``, by source that asks for heartbeats: those that have pushed
    and not taken leave. A base that was written without them has none.

    Where units are buckets of event time, ``lanes`` has by source how far that had come with the pulse
    (`BucketState.to_json`). Rows that waited for their bucket to close are not part of it: the units they are in are
    with all consumers.
    """

    index: int = 0
    pulse: int = 0
    positions: Mapping[str, Any] = field(default_factory=dict)
    last_cut_ms: int = 0
    waiting: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ledgers: Mapping[str, list[Any]] = field(default_factory=dict)
    rows: int = 0
    bad_rows: int = 0
    finished: bool = False
    generation: int = 1
    lanes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    producers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def units(self) -> dict[str, int]:
        """Where units are buckets, by source: the last one that may have a row from before the base."""
        return {source: int(state["top"]) for source, state in self.lanes.items()}

    @property
    def done_through(self) -> int:
        """Entries up to this one are not needed any more."""
        return min([self.index, *(index - 1 for indexes in self.waiting.values() for index in indexes)])

    def ledger(self, source: str) -> PushLedger:
        """What the log up to the base says about the producers of a source."""
        return PushLedger.from_json(self.ledgers.get(source, []))

    def to_bytes(self) -> bytes:
        value = {
            "index": self.index,
            "pulse": self.pulse,
            "positions": dict(self.positions),
            "last_cut_ms": self.last_cut_ms,
            "waiting": {source: list(indexes) for source, indexes in self.waiting.items()},
            "ledgers": dict(self.ledgers),
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "finished": self.finished,
            "generation": self.generation,
            "lanes": {source: dict(state) for source, state in self.lanes.items()},
            "producers": {source: list(names) for source, names in self.producers.items()},
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> IngressBase:
        """Raises ValueError, KeyError or TypeError if ``data`` is no base."""
        value = json.loads(data)
        return cls(
            int(value["index"]),
            int(value["pulse"]),
            dict(value["positions"]),
            int(value["last_cut_ms"]),
            {source: tuple(map(int, indexes)) for source, indexes in value["waiting"].items()},
            dict(value["ledgers"]),
            int(value["rows"]),
            int(value["bad_rows"]),
            bool(value["finished"]),
            int(value["generation"]),
            dict(value.get("lanes", {})),
            {source: tuple(map(str, names)) for source, names in value.get("producers", {}).items()},
        )

    def write(self, directory: Path) -> None:
        """Replace the base in ``directory``, at once and for good: entries before it are deleted next."""
        replace_file(directory / FILE_NAME, sealed(self.to_bytes()))

    @classmethod
    def read(cls, directory: Path) -> IngressBase | None:
        """The base in ``directory``; None if the log is kept from its first entry on."""
        path = directory / FILE_NAME
        try:
            return cls.from_bytes(unsealed(path, path.read_bytes(), REMEDY))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Damaged(path, repr(error), REMEDY) from None
