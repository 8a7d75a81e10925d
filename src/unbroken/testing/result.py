"""What came of a run: the results with their units, what happened, and what was lost or came twice."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.errors import UnbrokenError
from unbroken.observe.status.node import DivergedUnit
from unbroken.observe.status.summary import divergence_text
from unbroken.protocol.values.notices import Reported
from unbroken.testing.comparison import Row, latest, rows_of
from unbroken.testing.injection.executor import Struck
from unbroken.testing.input.files import RunFiles
from unbroken.testing.input.kept_units import KeptUnit
from unbroken.wording import choices

if TYPE_CHECKING:
    from unbroken.testing.warm.deployment import DeploymentSetup
    from unbroken.testing.warm.pool import WarmCluster

UNIT_COLUMN = "unit"
"""The column with the number of a row's unit, where it is asked for."""


@dataclass(frozen=True, order=True)
class UnitName:
    """A unit of a sink: unit ``number`` of shard ``shard`` of the segment before it."""

    sink: str
    shard: int
    number: int

    def __str__(self) -> str:
        return f"unit {self.number} of shard {self.shard} in {self.sink}"


@dataclass(frozen=True)
class ResultShape:
    """What has to be known of the flow: the shards of each sink, and whether units are numbered by cuts."""

    flow: str
    shards: Mapping[str, int]
    by_cut: bool


@dataclass
class Run:
    """The outcome of `run_with_faults`.

    ``history`` is what the nodes reported; ``struck`` what was done to them, in order. ``cuts`` has for every
    source the rows of each unit, from and to. ``reference`` is what it had to give, once that has been computed.
    """

    shape: ResultShape
    files: RunFiles
    units_by_sink: Mapping[str, Sequence[KeptUnit]]
    cuts: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    struck: tuple[Struck, ...] = ()
    history: tuple[Reported, ...] = ()
    divergences: tuple[DivergedUnit, ...] = ()
    took_s: float = 0.0
    setup: DeploymentSetup | None = field(default=None, repr=False)
    cluster: WarmCluster | None = field(default=None, repr=False)
    reference: dict[str, dict[int, list[Row]]] | None = field(default=None, repr=False)

    # --- results --------------------------------------------------------------------------------------

    def units(self, sink: str) -> list[KeptUnit]:
        """The units that came to a sink, in the order of their numbers; those that came twice are in there twice."""
        return sorted(
            (unit for unit in self._of(sink) if not unit.tentative), key=lambda unit: (unit.number, unit.shard)
        )

    def tentative(self, sink: str) -> list[KeptUnit]:
        """The units that were made without input that was missing, in the order in which they came."""
        return sorted((unit for unit in self._of(sink) if unit.tentative), key=lambda unit: unit.arrived_ms)

    def rows(self, sink: str, *, numbered: bool = False) -> list[Row]:
        """The rows that came to a sink, as dicts: by unit, and sorted within a unit, as Spark has no order of its own.

        With ``numbered`` each has the number of its unit as the column ``unit``.
        """
        return [
            {UNIT_COLUMN: number, **row} if numbered else row for number, rows in self._by_unit(sink) for row in rows
        ]

    def table(self, sink: str, *, numbered: bool = False) -> pa.Table:
        """The same rows as an Arrow table."""
        units = self.units(sink)
        if not units:
            raise UnbrokenError(f"no unit came to sink {sink}; {self.describe()}")
        schema = units[0].table.schema
        pieces: list[pa.Table] = []
        for number, rows in self._by_unit(sink):
            piece = pa.Table.from_pylist(rows, schema=schema)
            numbers = pa.array([number] * len(rows), pa.int64())
            pieces.append(piece.append_column(UNIT_COLUMN, numbers) if numbered else piece)
        return pa.concat_tables(pieces)

    def latest(self, sink: str, *keys: str) -> list[Row]:
        """The last row of every key: what is known in the end in a flow whose results are updates."""
        return latest(self.rows(sink), keys)

    # --- what faults did ------------------------------------------------------------------------------

    @property
    def gap_s(self) -> float:
        """The longest time without a result in any sink, in seconds.

        With faults it counts from the last result before the first of them; without, from the first result.
        """
        return max((self._gap_s(sink) for sink in self.shape.shards), default=0.0)

    @property
    def duplicates(self) -> list[UnitName]:
        """Units that came to a sink more than once. Empty, unless the flow's guarantee allows for it."""
        found: list[UnitName] = []
        for sink in self.shape.shards:
            counts = Counter((unit.shard, unit.number) for unit in self.units(sink))
            found += [UnitName(sink, *unit) for unit, count in counts.items() if count > 1]
        return sorted(found)

    @property
    def lost(self) -> list[UnitName]:
        """Units that never came to a sink. Empty, unless the flow's guarantee allows for it."""
        found: list[UnitName] = []
        for sink, shards in self.shape.shards.items():
            units = self.units(sink)
            last = max((unit.number for unit in units), default=0)
            if self.shape.by_cut:
                last = max([last, *map(len, self.cuts.values())])
            there = {(unit.shard, unit.number) for unit in units}
            wanted = ((shard, number) for shard in range(shards) for number in range(1, last + 1))
            found += [UnitName(sink, *unit) for unit in wanted if unit not in there]
        return sorted(found)

    # --- the directory --------------------------------------------------------------------------------

    def describe(self) -> str:
        """What was done and where to look, for messages."""
        lines = [f"flow {self.shape.flow}: {', '.join(self._counts()) or 'no results'}"]
        lines += [f"  done: {struck}" for struck in self.struck] or ["  nothing was done to it"]
        lines += [f"  divergence: {divergence_text(each)}" for each in self.divergences]
        return "\n".join([*lines, f"  logs: {self.files.logs}"])

    def remove_state(self) -> None:
        """Remove what the nodes had on their disks, which is most of the directory."""
        for path in self.files.root.iterdir():
            if path.is_dir() and path.name.startswith(("node-", "standby-", "snapshots")):
                shutil.rmtree(path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the directory of the run; the results stay in memory."""
        shutil.rmtree(self.files.root, ignore_errors=True)

    def _counts(self) -> list[str]:
        return [f"{len(self.units(sink))} units in {sink}" for sink in self.shape.shards]

    def _of(self, sink: str) -> Sequence[KeptUnit]:
        if sink not in self.units_by_sink:
            raise UnbrokenError(f"flow {self.shape.flow} has no sink {sink!r}; {choices(self.units_by_sink, sink)}")
        return self.units_by_sink[sink]

    def _by_unit(self, sink: str) -> list[tuple[int, list[Row]]]:
        tables: dict[int, list[pa.Table]] = {}
        for unit in self.units(sink):
            tables.setdefault(unit.number, []).append(unit.table)
        return [(number, rows_of(pa.concat_tables(pieces))) for number, pieces in tables.items()]

    def _gap_s(self, sink: str) -> float:
        arrived = sorted(unit.arrived_ms / 1000 for unit in self.units(sink))
        if self.struck:
            first = min(struck.at_s for struck in self.struck)
            before = [moment for moment in arrived if moment <= first]
            arrived = [*before[-1:], *(moment for moment in arrived if moment > first)]
        return max((b - a for a, b in pairwise(arrived)), default=0.0)
