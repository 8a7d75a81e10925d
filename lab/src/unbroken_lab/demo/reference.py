"""What the demonstration must deliver, computed without Spark, and the comparison with what it delivered.

Which rows belong to which pulse is decided while the flow runs, so it is read from the ingress log of a node
that survived. Everything else follows from the row numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from unbroken.connectors.files.sinks import StableFile, unit_in
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.entries import PULSE
from unbroken.node.ingress.log_file import IngressLogFile

WATERMARK = pd.Timedelta(minutes=1)
"""The watermark of the flow. The reference has none: it is only right while no session lasts this long."""

KEY = ["pulse", "app", "src"]
VALUES = ["longest_ms", "average_ms", "sessions"]


@dataclass(frozen=True)
class PulseSpan:
    """The rows ``start`` to ``stop - 1`` of the source that belong to a pulse."""

    pulse: int
    cut_ms: int
    start: int
    stop: int


@dataclass(frozen=True)
class DeliveredUnit:
    """A unit of results as it was found in a sink."""

    number: int
    pulse: int
    table: pa.Table


@dataclass(frozen=True)
class RowsVerdict:
    """How delivered rows differ from expected ones.

    ``lost``: expected rows that are missing. ``duplicated``: rows beyond the expected ones, whole units that
    came twice included. ``wrong``: rows that are there once, with other values than expected.
    """

    expected: int
    delivered: int
    lost: int
    duplicated: int
    wrong: int

    @property
    def exact(self) -> bool:
        return self.lost == self.duplicated == self.wrong == 0


def read_pulses(directory: Path, source: str) -> list[PulseSpan]:
    """The pulses in a node's ingress log; raises if they are not dense from the first pulse and row on."""
    if not directory.is_dir():
        raise UnbrokenError(f"{directory} holds no ingress log; was its node part of the ingress?")
    spans: list[PulseSpan] = []
    for entry in IngressLogFile(directory).read_all():
        if not entry.pulse:
            continue
        record = PULSE.decode(entry.body)
        start, end = record.spans[source]
        first = 0 if start is None else int(start["row"])
        spans.append(PulseSpan(entry.pulse, record.cut_ms, first, int(end["row"])))
    stop = 0
    for expected, span in enumerate(spans, 1):
        if span.pulse != expected or span.start != stop or span.stop < stop:
            raise UnbrokenError(f"the ingress log in {directory} has a hole before pulse {span.pulse}")
        stop = span.stop
    return spans


def expected_rows(packets: pa.Table, spans: Sequence[PulseSpan]) -> pd.DataFrame:
    """The rows of every unit of ``stats``; ``packets`` are all rows of the source from row 0 on."""
    frame = packets.slice(0, spans[-1].stop if spans else 0).to_pandas()
    if len(frame) and not (frame["ts"] - frame["started"]).max() < WATERMARK:
        raise UnbrokenError("a session lasts longer than the watermark; the reference does not cover that")
    frame["pulse"] = np.repeat([s.pulse for s in spans], [s.stop - s.start for s in spans]).astype(np.int64)
    return _statistics(_ended_sessions(frame))


def compare(expected: pd.DataFrame, units: Iterable[DeliveredUnit]) -> RowsVerdict:
    """Hold delivered units against the expected rows, unit by unit."""
    frames, seen, empty_again = [], set(), 0
    for unit in units:
        frames.append(unit.table.select([*KEY[1:], *VALUES]).to_pandas().assign(pulse=unit.pulse))
        empty_again += unit.number in seen and unit.table.num_rows == 0
        seen.add(unit.number)
    delivered = pd.concat([expected.iloc[:0], *frames], ignore_index=True)
    repeated = delivered.duplicated(KEY)
    joined = expected.merge(delivered[~repeated], on=KEY, how="outer", indicator=True, suffixes=("", "_delivered"))
    both = joined[joined["_merge"] == "both"]
    differing = np.zeros(len(both), dtype=bool)
    for name in VALUES:
        differing |= both[name].to_numpy() != both[f"{name}_delivered"].to_numpy()
    unexpected = int((joined["_merge"] == "right_only").sum())
    return RowsVerdict(
        expected=len(expected),
        delivered=len(delivered),
        lost=int((joined["_merge"] == "left_only").sum()),
        duplicated=int(repeated.sum()) + unexpected + empty_again,
        wrong=int(differing.sum()),
    )


def read_parquet(directory: Path) -> list[DeliveredUnit]:
    """The units in the directory of a Parquet sink."""
    units: list[DeliveredUnit] = []
    for path in sorted(directory.glob("*.parquet")):
        with path.open("rb") as file:
            table = pq.read_table(file)
        unit = unit_in(table.schema)
        assert isinstance(unit, StableFile), f"{path} is the file of a tentative unit"
        units.append(DeliveredUnit(unit.number, unit.pulse, table))
    return units


def _ended_sessions(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for every session and pulse in which it got a packet and has ended: pulse, app, src, dur_ms."""
    session = ["app", "src", "dst", "started"]
    frame = frame.assign(ended=frame["kind"] == "end")
    touched = frame.groupby([*session, "pulse"], sort=True, as_index=False).agg(
        last=("ts", "max"), ended=("ended", "max")
    )
    # Sorted by session, then pulse: what a session is after a pulse is everything up to there.
    sofar = touched.groupby(session, sort=False)
    touched["last"] = sofar["last"].cummax()
    touched["ended"] = sofar["ended"].cummax().astype(bool)
    out = touched[touched["ended"]]
    milliseconds = _milliseconds(out["last"]) - _milliseconds(out["started"])
    return out[KEY].assign(dur_ms=milliseconds)


def _statistics(sessions: pd.DataFrame) -> pd.DataFrame:
    """The running statistics of every (app, src) in every pulse that changed them."""
    changed = sessions.groupby(["app", "src", "pulse"], sort=True, as_index=False).agg(
        longest_ms=("dur_ms", "max"), total=("dur_ms", "sum"), sessions=("dur_ms", "count")
    )
    sofar = changed.groupby(["app", "src"], sort=False)
    changed["longest_ms"] = sofar["longest_ms"].cummax()
    changed["total"] = sofar["total"].cumsum()
    changed["sessions"] = sofar["sessions"].cumsum()
    changed["average_ms"] = changed["total"] / changed["sessions"]
    return changed[[*KEY, *VALUES]].reset_index(drop=True)


def _milliseconds(times: pd.Series) -> pd.Series:
    """Whole milliseconds since 1970, rounded down as Spark does."""
    micros = times.dt.tz_convert("UTC").dt.tz_localize(None).astype("datetime64[us]").astype(np.int64)
    return micros // 1000
