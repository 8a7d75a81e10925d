"""Parquet files: each row group is taken or set aside by itself, within what the file may take."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.places import TESTS
from unbroken.connectors.files.source import Files
from unbroken.data.rows.budget import BAD_ROWS, DecodeBudget
from unbroken.data.rows.parquet import decoded_estimate, read_parquet
from unbroken.data.rows.parsed import Rows
from unbroken.data.schema import arrow_schema, parse_schema

SMALL = DecodeBudget(1_000_000)


def schema(ddl: str) -> pa.Schema:
    return arrow_schema(parse_schema(ddl))


def read(path: Path, ddl: str, budget: DecodeBudget = SMALL) -> Rows:
    with open(path, "rb") as source:
        return read_parquet(source, path.name, schema(ddl), budget)


def test_a_group_over_budget_is_set_aside_and_the_others_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pq.ParquetWriter(path, pa.schema([("n", pa.int64())]), compression="zstd") as writer:
        for size in (10, 2_000_000, 20):
            writer.write_table(pa.table({"n": np.zeros(size, np.int64)}), row_group_size=size)
    assert path.stat().st_size < 50_000
    before = pa.default_memory_pool().max_memory()
    rows = read(path, "n long")
    assert (rows.table.num_rows, rows.rejected) == (30, 1)
    assert rows.bad[0].origin == "x, row group 2" and "more than max_decoded_bytes" in rows.bad[0].reason
    assert pa.default_memory_pool().max_memory() <= max(before, 12_000_000)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
def test_repeated_text_does_not_exceed_the_budget(tmp_path: Path, nested: bool, encoding: str) -> None:
    texts = pa.array(["x" * 100_000] * 1000)
    table = pa.table({"s": pa.StructArray.from_arrays([texts], ["t"]) if nested else texts})
    path = tmp_path / "x"
    if encoding == "dictionary":
        pq.write_table(table, path, compression="zstd")
    else:
        name = "s.t" if nested else "s"
        pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding={name: encoding})
    assert path.stat().st_size < 200_000
    del texts, table
    used = pa.total_allocated_bytes()
    rows = read(path, "s struct<t:string>" if nested else "s string")
    assert (rows.table.num_rows, rows.rejected) == (0, 1)
    assert pa.total_allocated_bytes() <= used + 1_000_000


def test_text_in_dictionaries_is_read_as_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a", None, "b", "a"], "z": [b"1", b"1", None, b""]}), tmp_path / "x")
    rows = read(tmp_path / "x", "s string, z binary, missing int")
    assert rows.bad == () and rows.table.schema == schema("s string, z binary, missing int")
    assert rows.table.to_pydict() == {
        "s": ["a", None, "b", "a"],
        "z": [b"1", b"1", None, b""],
        "missing": [None] * 4,
    }


def test_rows_with_years_that_no_sink_holds_are_set_aside_alone(tmp_path: Path) -> None:
    days = pa.array([0, 3_000_000, 1, None], pa.int32()).cast(pa.date32())
    lists = pa.array([[1], None, [], [9 * 10**18]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us", "UTC")))
    pq.write_table(pa.table({"d": days, "l": lists}), tmp_path / "x")
    rows = read(tmp_path / "x", "d date, l array<timestamp>")
    assert rows.table.column("d").to_pylist() == [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]
    assert [bad.origin for bad in rows.bad] == ["x, row group 1, row 2", "x, row group 1, row 4"]
    many = pa.array([3_000_000] * 5000, pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"d": many}), tmp_path / "y")
    rows = read(tmp_path / "y", "d date")
    assert (len(rows.bad), rows.rejected, len(rows.letters)) == (BAD_ROWS, 5000, BAD_ROWS + 1)


def test_a_pulse_takes_files_by_what_they_become(tmp_path: Path) -> None:
    for name in "abc":
        pq.write_table(pa.table({"n": np.zeros(100_000, np.int64)}), tmp_path / name, compression="zstd")
    assert decoded_estimate(tmp_path / "a", schema("n long")) >= 800_000
    reader = Files(tmp_path, format="parquet", schema="n long", max_bytes_per_pulse=1_000_000, settle_ms=0).open()
    reader.poll(None, 1000)
    cut = reader.poll(None, 2000)
    assert len(cut.position["files"]) == 1


def test_damaged_files_are_set_aside_and_end_nothing(tmp_path: Path) -> None:
    """Seeded mutations of a sound file, in a process of its own."""
    code = f"""
    import random
    from pathlib import Path
    import numpy as np, pyarrow as pa, pyarrow.parquet as pq
    from unbroken.connectors.files.source import Files
    folder = Path({str(tmp_path)!r})
    table = pa.table({{
        "n": np.arange(50), "s": ["a", None, "b", "c", "d"] * 10,
        "m": pa.array([1, 2, None, 4, 5] * 10).cast(pa.decimal128(21, 2)), "l": [[1], None, [], [2, 3], [4]] * 10,
    }})
    bodies = []
    for compression in ("none", "zstd"):
        pq.write_table(table, folder / "f", compression=compression, row_group_size=20)
        bodies.append((folder / "f").read_bytes())
    reader = Files(folder, format="parquet", schema="n long, s string, m decimal(10,2), l array<long>").open()
    dice, rows, rejected = random.Random(19), 0, 0
    for _ in range(400):
        body = bytearray(dice.choice(bodies))
        for _ in range(dice.choice([1, 1, 2, 8])):
            place = dice.randrange(len(body))
            body[place] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, body[place] ^ (1 << dice.randrange(8))])
        (folder / "f").write_bytes(body)
        found = reader.read(None, {{"count": 1, "files": [["f", len(body)]]}})
        rows, rejected = rows + found.table.num_rows, rejected + found.rejected
    assert rows and rejected
    print("alive")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "alive\n"), (done.returncode, done.stderr)


HISTOGRAMS = TESTS / "fuzz" / "corpus" / "parquet"


def test_footers_that_contradict_themselves_are_set_aside_and_end_nothing(tmp_path: Path) -> None:
    """Files whose footer Arrow reports with an exception when they are read, and by an abort when it is looked at; and
    seeded mutations of nothing but footers. In a process of its own."""
    code = f"""
    import random
    from pathlib import Path
    import pyarrow as pa, pyarrow.parquet as pq
    from unbroken.connectors.files.source import Files
    folder = Path({str(tmp_path)!r})
    ddl = "user string, n long, price decimal(10,2), at timestamp, day date, x double, tags array<string>"
    reader = Files(folder, format="parquet", schema=ddl).open()

    def read(body):
        (folder / "f").write_bytes(body)
        return reader.read(None, {{"count": 1, "files": [["f", len(body)]]}})

    found = sorted(Path({str(HISTOGRAMS)!r}).iterdir())
    assert len(found) >= 3
    for path in found:
        rows = read(path.read_bytes())
        assert rows.rejected == 1 and "histogram size mismatch" in rows.bad[0].reason, (path, rows)
    table = pa.table({{"user": ["a", "b"] * 10, "n": range(20), "tags": [["x"], []] * 10}})
    pq.write_table(table, folder / "f", row_group_size=10)
    sound = (folder / "f").read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    dice, taken, rejected = random.Random(5), 0, 0
    for _ in range(600):
        body = bytearray(sound)
        for _ in range(dice.choice([1, 1, 2, 4])):
            place = dice.randrange(footer, len(body) - 8)
            body[place] = dice.choice([0, 1, 0x15, 0x19, 0x7F, 0x80, 0xFF, body[place] ^ (1 << dice.randrange(8))])
        rows = read(bytes(body))
        taken, rejected = taken + rows.table.num_rows, rejected + rows.rejected
    assert taken and rejected
    print("alive")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "alive\n"), (done.returncode, done.stderr)


def test_columns_of_a_footer_are_told_apart_by_their_whole_names(tmp_path: Path) -> None:
    """A dot in a name is no step into a structure: another column is neither read nor looked at."""
    pq.write_table(pa.table({"a": ["x", "y"], "a.b": ["z", "z"], "c": [1, 2]}), tmp_path / "x")
    rows = read(tmp_path / "x", "a string, c long")
    assert rows.bad == () and rows.table.to_pydict() == {"a": ["x", "y"], "c": [1, 2]}
