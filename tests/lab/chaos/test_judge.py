"""The judge of a campaign finds whatever is lost, doubled, changed or out of place, in either sink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from unbroken.client import Result
from unbroken.connectors.files.sinks import Parquet
from unbroken.coordination.documents import Member
from unbroken.protocol.placement.declustering import chained_placement
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.units import Digest, UnitHeader
from unbroken.testing.harness.shortage import shortage_of
from unbroken_lab.chaos.judge import judge
from unbroken_lab.chaos.reference import COLUMNS, cuts_of, expected_units

SEED = 5
CUTS = [700, 1_600, 1_600, 2_100, 4_000]
REPLICAS = {"groups": 2, "ingress": 2}
STREAM = StreamId(ShardId("groups", 0), ShardId("table", 0))


def results() -> list[Result]:
    times = [1_000 * number for number in range(1, len(CUTS) + 1)]
    out: list[Result] = []
    for number, rows in enumerate(expected_units(SEED, CUTS, times), 1):
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        table = pa.table({name: pa.array(values, pa.int64()) for name, values in zip(COLUMNS, columns, strict=True)})
        header = UnitHeader(STREAM, number, number, times[number - 1], Digest(len(rows), 0), final=number == len(CUTS))
        out.append(Result(header, table, 0.0))
    return out


def deliver(received: list[Result], directory: Path) -> Path:
    sink = Parquet(directory).open(directory)
    for result in received:
        sink.deliver(result.header, result.table)
    return directory


def complaints(received: list[Result], files: Path, complete: bool = True) -> tuple[str, ...]:
    return judge(SEED, received, files, complete=complete).complaints


def test_the_reference_follows_from_the_results() -> None:
    units = expected_units(SEED, CUTS, [0] * len(CUTS))
    assert cuts_of(units) == CUTS
    groups = {row[0]: row for rows in units for row in rows}
    newest = COLUMNS.index("newest")
    assert max(row[newest] for row in groups.values()) == CUTS[-1] - 1
    assert units[2] == []


def test_right_results_are_right(tmp_path: Path) -> None:
    received = results()
    judgement = judge(SEED, received, deliver(received, tmp_path), complete=True)
    assert judgement.complaints == ()
    assert (judgement.units, judgement.source_rows) == (len(CUTS), CUTS[-1])
    assert judgement.rows == sum(result.table.num_rows for result in received)


@pytest.mark.parametrize("lost", range(5))
def test_a_unit_that_the_client_did_not_get(tmp_path: Path, lost: int) -> None:
    received = results()
    files = deliver(received, tmp_path)
    assert complaints([*received[:lost], *received[lost + 1 :]], files)


@pytest.mark.parametrize("lost", [0, 1, 3, 4])
def test_a_unit_that_is_in_no_file(tmp_path: Path, lost: int) -> None:
    received = results()
    files = deliver([*received[:lost], *received[lost + 1 :]], tmp_path)
    assert complaints(received, files) == (f"unit {lost + 1} is in no file",)
    assert complaints(received, files, complete=False) == ()


def test_a_unit_that_came_twice(tmp_path: Path) -> None:
    received = results()
    files = deliver(received, tmp_path)
    assert complaints([*received[:2], *received[1:]], files)[0] == "the client got unit 2 where unit 3 had to come"


def test_a_file_of_a_unit_that_never_was(tmp_path: Path) -> None:
    received = results()
    more = replace(received[3], header=replace(received[3].header, number=9))
    assert complaints(received, deliver([*received, more], tmp_path))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_changed_value(tmp_path: Path, column: str) -> None:
    received = results()
    table = received[3].table
    values = table.column(column).to_pylist()
    changed = pa.array([values[0] - 1, *values[1:]], pa.int64())
    wrong = replace(received[3], table=table.set_column(COLUMNS.index(column), column, changed))
    client = complaints([*received[:3], wrong, *received[4:]], deliver(received, tmp_path / "right"))
    assert any("unit 4 (client)" in complaint for complaint in client)
    files = complaints(received, deliver([*received[:3], wrong, *received[4:]], tmp_path / "wrong"))
    assert any("unit 4 (files)" in complaint for complaint in files)


def test_a_row_that_is_there_twice(tmp_path: Path) -> None:
    received = results()
    wrong = replace(received[3], table=pa.concat_tables([received[3].table, received[3].table.slice(0, 1)]))
    assert "1 twice" in complaints([*received[:3], wrong, *received[4:]], deliver(received, tmp_path))[0]


def test_an_end_that_was_not_reached(tmp_path: Path) -> None:
    received = results()[:4]
    files = deliver(received, tmp_path)
    assert "final ones are []" in complaints(received, files)[0]
    assert complaints(received, files, complete=False) == ()


def test_a_flow_is_whole_only_on_nodes_that_are_there_with_their_disks() -> None:
    topology = Topology(("numbers",), {"groups": 1}, ("table",), (("numbers", "groups"), ("groups", "table")), REPLICAS)
    disks = {"node-1": "a", "node-2": "b", "node-3": "c"}
    layout = chained_placement(topology, disks)
    members = {name: Member(name, "", "", "", 1, "", disk) for name, disk in disks.items()}
    shard = ShardId("groups", 0)
    assert shortage_of(layout, members, topology) is None
    assert shortage_of(layout, {**members, "node-2": replace(members["node-2"], disk="d")}, topology) is not None
    assert shortage_of(layout, {"node-1": members["node-1"]}, topology) is not None
    assert shortage_of(layout.without([ReplicaId(shard, 0)]), members, topology) is not None
    assert shortage_of(replace(layout, joining=frozenset({ReplicaId(shard, 1)})), members, topology) is not None
    assert shortage_of(replace(layout, short_since={shard: 1}), members, topology) is not None
