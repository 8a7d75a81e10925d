"""The PostgreSQL sink on a server: what becomes of rows, which tables they go to, and what is refused."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kit.delivering import IDENTITY, header
from kit.postgres.place import Place
from unbroken.errors import UnbrokenError

UTC = dt.UTC
NAUGHTY = ["", "a,b", 'say "x"', "two\nlines", "\r\n", "\\.", "a\n\\.\nb", "\\N", "\t", "null", "ü€😀", " x "]

COLUMNS: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "a bool": (pa.bool_(), [True, False], "boolean"),
    "int8": (pa.int8(), [-128, 127], "smallint"),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1], "smallint"),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1], "integer"),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1], "bigint"),
    "uint64": (pa.uint64(), [0, 2**64 - 1], "numeric(20,0)"),
    "float32": (pa.float32(), [1.5, math.inf], "real"),
    "float64": (pa.float64(), [0.1, 5e-324], "double precision"),
    "far": (pa.float64(), [math.inf, -math.inf], "double precision"),
    "decimal": (
        pa.decimal128(38, 10),
        [Decimal("12345678901234567890.0000000001"), Decimal("-0E-10")],
        "numeric(38,10)",
    ),
    "text": (pa.string(), ["", "x"], "text"),
    "large text": (pa.large_string(), ["a", "b"], "text"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "a"], "text"),
    "binary": (pa.binary(), [b"", bytes(range(256))], "bytea"),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], "date"),
    "zoned": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1583, 1, 1, 0, 0, 0, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
        "timestamp with time zone",
    ),
    "naive": (
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 15, 123456)],
        "timestamp without time zone",
    ),
    "time": (pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)], "time without time zone"),
    "duration": (pa.duration("us"), [dt.timedelta(microseconds=-1), dt.timedelta(days=400)], "interval"),
    "list": (pa.list_(pa.int64()), [[1, None], []], "jsonb"),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.float64())]),
        [{"a": "x", "b": 1.5}, {"a": None, "b": None}],
        "jsonb",
    ),
    "nothing": (pa.null(), [None, None], "text"),
}


def test_every_type_comes_back_as_it_was(place: Place) -> None:
    table = pa.table({name: pa.array([*values, None], kind) for name, (kind, values, _) in COLUMNS.items()})
    writer = place.writer()
    assert writer.deliver(header(1), table)
    writer.close()
    rows = place.query("SELECT * FROM results")
    for index, (name, (_, values, _)) in enumerate(COLUMNS.items()):
        found = [row[index] for row in rows]
        assert found[:2] == values, name
        assert found[2] is None
    types = place.query(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'results'::regclass AND attnum > 0"
    )
    assert types == [(name, kind) for name, (_, _, kind) in COLUMNS.items()]


def test_nan_maps_and_times_in_other_zones(place: Place) -> None:
    instant = dt.datetime(2024, 7, 1, 12, tzinfo=UTC)
    table = pa.table(
        {
            "nan": pa.array([math.nan, None]),
            "nan32": pa.array([math.nan, None], pa.float32()),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "nested": pa.array(
                [[{"at": instant, "n": math.nan}], None],
                pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.float64())])),
            ),
            "berlin": pa.array([instant, None], pa.timestamp("ns", "Europe/Berlin")),
        }
    )
    writer = place.writer()
    assert writer.deliver(header(1), table)
    writer.close()
    found, nulls = place.query("SELECT * FROM results ORDER BY map IS NULL")
    assert math.isnan(found[0]) and math.isnan(found[1])
    assert found[2:] == ({"k": 1}, [{"at": "2024-07-01T12:00:00.000000Z", "n": None}], instant)
    assert nulls == (None,) * 5


def test_text_that_could_be_taken_for_something_else(place: Place) -> None:
    writer = place.writer()
    assert writer.deliver(header(1), pa.table({"s": [*NAUGHTY, None], "n": range(len(NAUGHTY) + 1)}))
    assert writer.deliver(header(2), pa.table({"s": [*NAUGHTY, None], "n": range(len(NAUGHTY) + 1)}).slice(3, 5))
    writer.close()
    only = place.writer("single")
    assert only.deliver(header(1, "other.0>out.0"), pa.table({"s": [None, "", None]}))
    only.close()
    assert place.query("SELECT s FROM results ORDER BY n") == [
        (text,) for n, text in enumerate([*NAUGHTY, None]) for _ in range(2 if 3 <= n < 8 else 1)
    ]
    assert place.query("SELECT s IS NULL FROM single ORDER BY 1") == [(False,), (True,), (True,)]


def test_names_are_as_they_are_written(place: Place) -> None:
    names = ['Upper "quoted"', "per%cent %s", "{brace}", "select"]
    writer = place.writer("My Table")
    assert writer.deliver(header(1), pa.table({name: [1] for name in names}))
    writer.close()
    assert place.query('SELECT * FROM "My Table"') == [(1, 1, 1, 1)]


def test_a_table_that_is_there_keeps_its_types(place: Place) -> None:
    place.query(
        "CREATE TYPE mood AS ENUM ('ok', 'sad'); CREATE DOMAIN small AS integer CHECK (VALUE < 100); "
        "CREATE TABLE results (id bigserial PRIMARY KEY, u uuid, m mood, v varchar(5), n numeric, d small, "
        "raw bytea, doc json, made timestamptz DEFAULT now())"
    )
    key = "6f1c1a0e-8a3f-4a57-9b5e-0d7f2a9a1c11"
    table = pa.table(
        {
            "m": ["ok"],
            "u": [key],
            "v": ["short"],
            "n": pa.array([7], pa.int32()),
            "d": pa.array([99], pa.int32()),
            "raw": ["nul\0"],
            "doc": [["nul\0"]],
        }
    )
    writer = place.writer(create=False)
    assert writer.deliver(header(1), table)
    found = place.query("SELECT id, u::text, m::text, v, n, d, raw, doc::text, made IS NOT NULL FROM results")
    assert found == [(1, key, "ok", "short", 7, 99, b"nul\0", '["nul\\u0000"]', True)]
    too_large = table.set_column(4, "d", pa.array([100], pa.int32()))
    with pytest.raises(UnbrokenError, match=r'violates check constraint "small_check".*column d'):
        writer.deliver(header(2), too_large)
    assert writer.deliver(header(2), table)
    writer.close()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("n integer, s text", 'its column "n" is of type integer, which does not hold every bigint unchanged; cast it'),
        ("n text, s text", 'its column "n" is of type text'),
        ("n bigint", 'it has no column "s"; ALTER TABLE .*results ADD COLUMN "s" text'),
        ("n bigint, s text, t text NOT NULL", 'its column "t" may not be null and the results do not have it'),
        ("n bigint, s text GENERATED ALWAYS AS ('x') STORED", 'its column "s" is generated'),
        ("n bigint, s integer", 'its column "s" is of type integer, which does not hold every text'),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_the_name_of_the_column(
    place: Place, definition: str, message: str
) -> None:
    place.query(f"CREATE TABLE results ({definition})")
    writer = place.writer()
    with pytest.raises(UnbrokenError, match=message):
        writer.deliver(header(1), pa.table({"n": [1], "s": ["x"]}))
    writer.close()
    assert place.query("SELECT count(*) FROM results") == [(0,)]


def test_a_table_that_is_altered_is_looked_at_again(place: Place) -> None:
    writer = place.writer()
    assert writer.deliver(header(1), pa.table({"n": [1]}))
    other = pa.table({"n": [2], "more": ["x"]})  # As after an upgrade of the segment.
    with pytest.raises(UnbrokenError, match='it has no column "more"'):
        writer.deliver(header(2), other)
    place.query("ALTER TABLE results ADD COLUMN more text")
    assert writer.deliver(header(2), other)
    place.query("ALTER TABLE results DROP COLUMN n")
    with pytest.raises(UnbrokenError, match='"n" of relation "results" does not exist'):
        writer.deliver(header(3), other)
    with pytest.raises(UnbrokenError, match='it has no column "n"'):
        writer.deliver(header(3), other)
    writer.close()


def test_without_create_a_missing_table_is_an_error(place: Place) -> None:
    writer = place.writer(create=False)
    with pytest.raises(UnbrokenError, match=r"has no table .*results; create it, or"):
        writer.deliver(header(1), pa.table({"n": [1]}))
    writer.close()


def test_text_that_postgresql_cannot_keep_is_told_with_its_column(place: Place) -> None:
    writer = place.writer()
    with pytest.raises(UnbrokenError, match='the text in "bad" has characters'):
        writer.deliver(header(1), pa.table({"good": ["a"], "bad": ["a\0b"]}))
    place.query("DROP TABLE results")
    with pytest.raises(UnbrokenError, match='the text in "nested" has characters'):
        writer.deliver(header(1), pa.table({"good": ["a"], "nested": [["a\0b"]]}))
    writer.close()


class TestUpsert:
    def test_a_row_replaces_the_one_with_its_key(self, place: Place) -> None:
        writer = place.writer(mode="upsert", key=["shop", "day"])
        days = pa.array([1, 1, 2, None], pa.int32())
        assert writer.deliver(header(1), pa.table({"shop": ["a", None, "a", None], "day": days, "total": [1, 2, 3, 4]}))
        assert writer.deliver(header(2), pa.table({"shop": [None, "a"], "day": days[2:], "total": [5, 6]}))
        assert not writer.deliver(header(1), pa.table({"shop": ["a"], "day": days[:1], "total": [9]}))
        assert writer.deliver(header(3), pa.table({"shop": ["a", None], "day": days[1:3], "total": [7, 8]}))
        writer.close()
        assert place.query("SELECT shop, day, total FROM results ORDER BY total") == [
            (None, 1, 2),
            ("a", 2, 3),
            (None, None, 4),
            ("a", None, 6),
            ("a", 1, 7),
            (None, 2, 8),
        ]

    def test_all_columns_can_be_the_key(self, place: Place) -> None:
        writer = place.writer(mode="upsert", key="n")
        assert writer.deliver(header(1), pa.table({"n": [1, 2]}))
        assert writer.deliver(header(2), pa.table({"n": [2, 3]}))
        writer.close()
        assert place.query("SELECT n FROM results ORDER BY n") == [(1,), (2,), (3,)]

    def test_a_key_that_a_unit_has_twice_is_refused_unless_it_is_said_which_row_stays(self, place: Place) -> None:
        twice = pa.table({"k": ["a", "b", "a", "b"], "at": [2, None, 1, 0], "v": [20, 21, 10, 11]})
        writer = place.writer(mode="upsert", key="k")
        assert writer.deliver(header(1), pa.table({"k": ["a"], "at": [0], "v": [0]}))
        with pytest.raises(UnbrokenError, match=r"several rows with the same key \(k\).*latest='column'"):
            writer.deliver(header(2), twice)
        writer.close()
        telling = place.writer(mode="upsert", key="k", latest="at")
        assert telling.deliver(header(2), twice)
        assert place.query("SELECT * FROM results ORDER BY k") == [("a", 2, 20), ("b", 0, 11)]
        assert telling.deliver(header(3), pa.table({"k": ["a", "b"], "at": [1, 0], "v": [30, 31]}))
        assert place.query("SELECT * FROM results ORDER BY k") == [("a", 2, 20), ("b", 0, 31)]
        ties = pa.table({"k": ["c", "c"], "at": [1, 1], "v": [1, 2]})
        assert telling.deliver(header(4), ties) and telling.deliver(header(1, "t.1>out.0"), ties.take([1, 0]))
        assert place.query("SELECT v FROM results WHERE k = 'c'") == [(2,)]
        telling.close()

    def test_a_table_without_a_unique_constraint_is_refused(self, place: Place) -> None:
        place.query("CREATE TABLE results (k text, v bigint)")
        writer = place.writer(mode="upsert", key="k")
        with pytest.raises(UnbrokenError, match=r"no unique constraint on exactly \(k\).*ADD UNIQUE"):
            writer.deliver(header(1), pa.table({"k": ["a"], "v": [1]}))
        with pytest.raises(UnbrokenError, match='the results have no column "k"'):
            writer.deliver(header(1), pa.table({"v": [1]}))
        writer.close()


class TestLedger:
    def test_it_knows_the_last_unit_of_each_stream_whatever_code_produced_it(self, place: Place) -> None:
        writer, table = place.writer(), pa.table({"n": [1]})
        assert place.sink().occupied() is None
        assert writer.deliver(header(1), table) and writer.deliver(header(7), table)
        assert writer.deliver(header(3, "totals.1>out.0"), table)
        assert not writer.deliver(header(7, "totals@2.0>out.0"), table)
        assert writer.deliver(header(8, "totals@2.0>out.0"), table)
        writer.close()
        assert place.query("SELECT sink, stream, number FROM ledger ORDER BY 2") == [
            (IDENTITY, "totals.0>out.0", 8),
            (IDENTITY, "totals.1>out.0", 3),
        ]
        assert place.query("SELECT count(*) FROM results") == [(4,)]
        told = place.sink().occupied()
        assert told is not None and "ledger" in told and "DELETE FROM" in told
        other = place.sink()
        other.identity = "orders/elsewhere"
        assert other.occupied() is None

    def test_units_without_rows_leave_no_trace(self, place: Place) -> None:
        writer = place.writer(url="postgresql://nobody@127.0.0.1:1/none")
        assert writer.deliver(header(1), pa.table({"n": pa.array([], pa.int64())}))
        writer.close()

    def test_it_needs_no_right_to_create_what_is_there(self, place: Place) -> None:
        role = place.schema
        table = pa.table({"n": [1]})
        first = place.writer()
        assert first.deliver(header(1), table)
        first.close()
        place.query(
            f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {role} TO {role}; GRANT INSERT ON results TO {role}; "
            f"GRANT SELECT, INSERT, UPDATE ON ledger TO {role}"
        )
        try:
            writer = place.writer(url=f"{place.url}?options=-crole%3D{role}")
            assert writer.deliver(header(2), table)
            writer.close()
            missing = place.writer("elsewhere", url=f"{place.url}?options=-crole%3D{role}")
            with pytest.raises(UnbrokenError, match="permission denied for schema"):
                missing.deliver(header(3), table)
            missing.close()
        finally:
            place.query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_commit_is_on_disk_even_if_the_server_does_not_care(place: Place) -> None:
    for given, found in (("off", "on"), ("local", "local")):
        connection = place.sink(url=f"{place.url}?options=-csynchronous_commit%3D{given}").connect(5)
        row = connection.execute("SHOW synchronous_commit").fetchone()
        connection.close()
        assert row == (found,)
