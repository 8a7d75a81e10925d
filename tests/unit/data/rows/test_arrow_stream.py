"""Arrow pushes from outside: what is too large or not sound is refused before it is decoded, and nothing else is."""

from __future__ import annotations

import datetime as dt
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from unbroken.connectors.push.source import Push, PushBatch
from unbroken.data.rows.arrow_stream import read_stream
from unbroken.data.rows.budget import DecodeBudget, OverBudget

SMALL = DecodeBudget(1_000_000)
SOURCE = Push("n long, user string", max_decoded_bytes=SMALL.bytes)


def stream(*tables: pa.Table, **options: Any) -> bytes:
    body = io.BytesIO()
    with pa.ipc.new_stream(body, tables[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for table in tables:
            writer.write_table(table)
    return body.getvalue()


def refused(body: bytes, source: Push = SOURCE) -> tuple[str, str]:
    """Status and reason of a refusal; the same batch is one bad row if it is in the log nevertheless."""
    batch = PushBatch("s", "p", 1, body, "arrow")
    refusal = source.refusal(batch)
    reader = source.open()
    reader.take(1, batch)
    rows = reader.read(None, 1)
    assert (rows.rejected, rows.table.num_rows) == ((0, rows.table.num_rows) if refusal is None else (1, 0))
    return ("", "") if refusal is None else (refusal.status, refusal.reason)


def view_bomb() -> pa.Table:
    """Many views of the same long text."""
    text = b"x" * 50_000
    views = np.zeros((1000, 4), np.int32)
    views[:, 0] = len(text)
    views[:, 1] = np.frombuffer(text[:4], np.int32)
    array = pa.Array.from_buffers(pa.string_view(), 1000, [None, pa.py_buffer(views), pa.py_buffer(text)])
    return pa.table({"user": array})


def null_list_bomb() -> pa.Table:
    """Lists whose items take no room, until they are numbers."""
    return pa.table({"l": pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1))})


LONG_DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array(["x"] * 100_000))

BOMBS: dict[str, tuple[Callable[[], bytes], Push]] = {
    "zstd": (lambda: stream(pa.table({"n": np.zeros(200_000, np.int64)}), compression="zstd"), SOURCE),
    "lz4": (lambda: stream(pa.table({"n": np.zeros(200_000, np.int64)}), compression="lz4"), SOURCE),
    "dictionary": (
        lambda: stream(
            pa.table({"user": pa.DictionaryArray.from_arrays(np.zeros(2000, np.int8), pa.array(["x" * 50_000]))})
        ),
        SOURCE,
    ),
    "compressed dictionary": (
        lambda: stream(
            pa.table({"user": pa.DictionaryArray.from_arrays(np.zeros(2, np.int8), pa.array(["x" * 2_000_000]))}),
            compression="zstd",
        ),
        SOURCE,
    ),
    "views": (lambda: stream(view_bomb()), SOURCE),
    "rows without bytes": (lambda: stream(pa.table({"z": pa.nulls(10**9)})), SOURCE),
    "missing columns": (lambda: stream(pa.table({"z": pa.nulls(1_000_000)})), SOURCE),
    "items without bytes": (lambda: stream(null_list_bomb()), Push("l array<long>", max_decoded_bytes=SMALL.bytes)),
    "a dictionary for every batch": (lambda: stream(*[pa.table({"user": LONG_DICTIONARY})] * 60), SOURCE),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_become_too_large_is_refused_before_it_is_decoded(name: str) -> None:
    make, source = BOMBS[name]
    body = make()
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    peak_before = pool.max_memory()
    status, reason = refused(body, source)
    assert status == "too-large" and reason.endswith(".")
    assert pool.max_memory() <= max(peak_before, before + 20 * SMALL.bytes)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_what_fits_is_taken(compression: str | None) -> None:
    users = pa.array(["a", None, "b"] * 100)
    for column in (users, users.dictionary_encode(), users.cast(pa.large_string()), users.cast(pa.string_view())):
        body = stream(pa.table({"n": np.arange(300), "user": column}), compression=compression)
        assert refused(body) == ("", "")
        assert read_stream(body, SMALL).num_rows == 300


def test_many_columns_are_refused_in_linear_time() -> None:
    names = [f"c{i}" for i in range(20_000)]
    body = stream(pa.Table.from_arrays([pa.nulls(1)] * len(names), names=names))
    assert refused(body) == ("", "")
    twice = stream(pa.Table.from_arrays([pa.nulls(1)] * len(names), names=["x" * 1000] * len(names)))
    status, reason = refused(twice)
    assert status == "bad-request" and len(reason) <= 500


def test_a_delta_of_a_dictionary_is_refused() -> None:
    first = pa.DictionaryArray.from_arrays([0], pa.array(["a"]))
    second = pa.DictionaryArray.from_arrays([1], pa.array(["a", "b"]))
    body = stream(pa.table({"user": first}), pa.table({"user": second}), emit_dictionary_deltas=True)
    assert "adds to a dictionary" in refused(body)[1]


@pytest.mark.parametrize(
    ("ddl", "array"),
    [
        ("date", pa.array([3_000_000], pa.int32()).cast(pa.date32())),
        ("date", pa.array([-800_000], pa.int32()).cast(pa.date32())),
        ("timestamp", pa.array([9 * 10**18], pa.int64()).cast(pa.timestamp("us", "UTC"))),
        ("timestamp_ntz", pa.array([-(10**18)], pa.int64()).cast(pa.timestamp("us"))),
        ("struct<d:date>", pa.StructArray.from_arrays([pa.array([3_000_000], pa.int32()).cast(pa.date32())], ["d"])),
        ("array<date>", pa.ListArray.from_arrays([0, 1], pa.array([3_000_000], pa.int32()).cast(pa.date32()))),
        (
            "map<string,date>",
            pa.MapArray.from_arrays([0, 1], ["k"], pa.array([3_000_000], pa.int32()).cast(pa.date32())),
        ),
    ],
)
def test_a_year_that_no_sink_holds_is_refused(ddl: str, array: pa.Array) -> None:
    source = Push(f"x {ddl}")
    status, reason = refused(stream(pa.table({"x": array})), source)
    assert status == "bad-request" and "years 1 to 9999" in reason


def test_the_first_and_the_last_year_are_taken() -> None:
    days = pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None])
    times = pa.array(
        [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), None], pa.timestamp("us", "UTC")
    )
    assert refused(stream(pa.table({"d": days, "t": times})), Push("d date, t timestamp")) == ("", "")


def test_over_budget_says_how_much() -> None:
    with pytest.raises(OverBudget, match="takes 1600000 bytes when decoded"):
        read_stream(stream(pa.table({"n": np.zeros(200_000, np.int64)}), compression="zstd"), SMALL)


def test_damaged_streams_are_refused_and_end_nothing() -> None:
    """Seeded mutations of sound streams, in a process of its own: each is taken, or refused with a reason."""
    code = """
    import io, random
    import numpy as np, pyarrow as pa
    from unbroken.connectors.push.source import Push, PushBatch
    source = Push("n long, user string, m decimal(10,2), l array<int>, t timestamp", max_decoded_bytes=10_000_000)
    table = pa.table({
        "n": np.arange(5), "user": pa.array(["a", None, "b", "c", "a"]),
        "m": pa.array([1, 2, None, 4, 5]).cast(pa.decimal128(21, 2)),
        "l": pa.array([[1], None, [], [2, 3], [4]], pa.list_(pa.int32())),
        "t": pa.array([0, 1, 2, None, 4], pa.timestamp("us", "UTC")),
    })
    coded = table.set_column(1, "user", table.column("user").dictionary_encode())
    bodies = []
    for each in (table, coded):
        for compression in (None, "zstd", "lz4"):
            body = io.BytesIO()
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_stream(body, each.schema, options=options) as writer:
                writer.write_table(each)
            bodies.append(body.getvalue())
    dice, taken = random.Random(19), 0
    for _ in range(1500):
        body = bytearray(dice.choice(bodies))
        for _ in range(dice.choice([1, 1, 2, 8])):
            place = dice.randrange(len(body))
            body[place] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, body[place] ^ (1 << dice.randrange(8))])
        if dice.random() < 0.1:
            del body[dice.randrange(len(body)):]
        refusal = source.refusal(PushBatch("s", "p", 1, bytes(body), "arrow"))
        taken += refusal is None
        assert refusal is None or 0 < len(refusal.reason) <= 500
    assert 0 < taken < 1500
    print("alive")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "alive\n"), (done.returncode, done.stderr)
