"""What a flow costs on a machine, as it was measured there: numbers that a simulation needs and a file can keep.

Nothing here needs Spark: who has the file can ask for predictions on any machine, see ``measurement`` for how the
numbers come about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.sim.queries import CostModel

VERSION = 1

CORES = 2
"""Task slots of a node unless its settings say otherwise."""


@dataclass(frozen=True)
class StateReach:
    """How far back the state of a segment reaches: ``ms``, or None with the reason why that cannot be told."""

    ms: float | None = 0.0
    timed: bool = False
    watermark: bool = False
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class SourceCosts:
    """What the rows of a source are like: ``rows`` says where they came from (its own, replayed, made up)."""

    row_bytes: float
    unit_bytes: float
    rows: str = "its own"


@dataclass(frozen=True)
class SegmentCosts:
    """What one replica of a segment does with its rows, if it gets all of them. Times are in milliseconds.

    A micro-batch takes ``batch_ms`` and ``row_us`` for each row, give or take ``spread`` of it, and ``commit_ms`` until
    the next one may begin. ``query_ms`` is how long a query takes to start on a checkpoint in a process that has run it
    before, ``first_ms`` what its first micro-batches take beyond the usual; ``cold_query_ms`` and ``cold_first_ms`` are
    the same in a process that has not.

    A unit of results has ``unit_bytes`` and ``row_bytes`` for each of ``keep`` rows per row of input. A copy of the
    state has ``state_bytes``; each micro-batch adds ``change_bytes`` and ``change_row_bytes`` for each row, a snapshot
    of it, which comes now and then, ``snapshot_bytes``.
    """

    batch_ms: float
    row_us: float
    commit_ms: float
    spread: float
    query_ms: float
    first_ms: tuple[float, ...]
    cold_query_ms: float
    cold_first_ms: tuple[float, ...]
    keep: float
    row_bytes: float
    unit_bytes: float
    state_bytes: float
    change_bytes: float
    change_row_bytes: float
    snapshot_bytes: float
    reach: StateReach = field(default_factory=StateReach)


@dataclass(frozen=True)
class Calibration:
    """The costs of a flow: of its sources and segments, of a pulse in the log of the ingress, and of a start.

    ``rate`` is the number of rows per second, of all sources together, that it was measured with, ``boot_ms`` the time
    in which a process gets its Spark session.
    """

    flow: str
    rate: float
    pulse_ms: float
    entry_bytes: int
    boot_ms: float
    sources: Mapping[str, SourceCosts]
    segments: Mapping[str, SegmentCosts]
    machine: str = ""
    took_s: float = 0.0

    def costs(self, cores: int = CORES, copy_bytes_per_ms: float = 100_000.0) -> CostModel:
        """How long things take, for the simulator. How many rows and bytes there are is ``PlanWorld``'s."""
        whole = CostModel(
            boot_ms=self.boot_ms, cores=cores, copy_bytes_per_ms=copy_bytes_per_ms, keep=1.0, state_share=0.0
        )
        return replace(whole, parts={name: _model(whole, costs) for name, costs in self.segments.items()})

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Calibration:
        if value.get("version") != VERSION:
            raise UnbrokenError(f"it is of version {value.get('version')!r}, and this is for {VERSION}")
        known = {key: value[key] for key in ("flow", "rate", "pulse_ms", "entry_bytes", "boot_ms", "machine", "took_s")}
        sources = {name: SourceCosts(**costs) for name, costs in value["sources"].items()}
        return cls(**known, sources=sources, segments={name: _read(costs) for name, costs in value["segments"].items()})

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Calibration:
        try:
            return cls.from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            raise UnbrokenError(f"there is no calibration {path}; leave --calibration out to measure one") from None
        except (ValueError, TypeError, KeyError, AttributeError, OSError, UnbrokenError) as error:
            raise UnbrokenError(f"{path} is no calibration: {error}; leave --calibration out to measure one") from None

    def refuse_other(self, flow: str, sources: set[str], segments: set[str]) -> None:
        """Raise if it is about another flow: numbers of one with other parts would say nothing."""
        if (self.flow, set(self.sources), set(self.segments)) == (flow, sources, segments):
            return
        parts = ", ".join([*self.sources, *self.segments])
        raise UnbrokenError(
            f"the calibration is that of flow {self.flow} with {parts}, and this is {flow} with "
            f"{', '.join(sorted(sources) + sorted(segments))}; leave --calibration out to measure one"
        )


def _model(whole: CostModel, costs: SegmentCosts) -> CostModel:
    usual = replace(
        whole,
        batch_ms=costs.batch_ms,
        row_us=costs.row_us,
        commit_ms=costs.commit_ms,
        spread=costs.spread,
        query_ms=costs.query_ms,
        first_ms=costs.first_ms,
    )
    return replace(usual, cold=replace(usual, query_ms=costs.cold_query_ms, first_ms=costs.cold_first_ms))


def _read(value: Mapping[str, Any]) -> SegmentCosts:
    found = {**value, "reach": StateReach(**value["reach"])}
    for name in ("first_ms", "cold_first_ms"):
        found[name] = tuple(float(ms) for ms in value[name])
    return SegmentCosts(**found)
