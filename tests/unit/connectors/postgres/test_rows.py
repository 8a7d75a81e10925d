"""The PostgreSQL sink without a server: declarations, secrets, types and the text of rows."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.delivering import header, unit
from unbroken import Dataflow, PostgreSQL
from unbroken.connectors.postgres.rows import BATCH_ROWS, copy_data, sql_type, takes, unfit_text
from unbroken.connectors.postgres.session import DatabaseAddress
from unbroken.errors import UnbrokenError
from unbroken.flow.network.signatures import given, model_of

pytest.importorskip("psycopg")

SECRET = "pw-7/&%3"
URL = "postgresql://writer:pw-7%2F%26%253@db.example:5433/shop?connect_timeout=2"


UNREADABLE = [
    "postgresql://me:hush@[::1/x",
    "postgresql://me:a@hush@host/x",
    "postgresql://me:hush/a@host/x",
    "host=db passwd=hush",
]


PUBLIC = "postgresql://writer@db.example:5433/shop?connect_timeout=2"


def sink(**parameters: Any) -> PostgreSQL:
    return PostgreSQL(**{"url": PUBLIC, "table": "totals", **parameters})


class TestDeclaration:
    def test_a_right_one(self) -> None:
        assert sink().problems() == []
        assert sink(table="shop.totals", mode="upsert", key="shop", latest="at").problems() == []
        assert sink(url="host=/tmp dbname=x").problems() == [] and sink(url="").problems() == []
        assert sink().idempotent and not sink().client and not sink().tentative
        assert sink(status="how").tentative and sink(status="how").problems() == []

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"table": ""}, "The table is ''"),
            ({"table": "a.b.c"}, "The table is 'a.b.c'"),
            ({"ledger": "x."}, "The ledger is 'x.'"),
            ({"mode": "merge"}, "The mode is 'merge'"),
            ({"mode": "upsert"}, "mode='upsert' has no key"),
            ({"key": ["a"]}, "key and latest mean nothing with mode='append'"),
            ({"latest": "a"}, "key and latest mean nothing"),
            ({"status": ""}, "The status is ''"),
            ({"status": "a", "mode": "upsert", "key": "a"}, "The status is 'a'"),
            ({"timeout": 0}, "The timeout is 0 s"),
            ({"timeout": float("inf")}, "The timeout is inf s"),
            *(({"url": url}, "The address of PostgreSQL cannot be read") for url in UNREADABLE),
        ],
    )
    def test_a_wrong_one_is_told_with_a_remedy(self, parameters: dict[str, Any], words: str) -> None:
        (problem,) = sink(**parameters).problems()
        assert problem.what.startswith(words) and problem.remedy and "hush" not in str(problem)

    def test_the_package_may_be_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        (problem,) = sink().problems()
        assert "pip install 'unbroken[postgres]'" in problem.remedy

    def test_a_network_takes_the_same_parameters(self) -> None:
        written = {"url": URL, "table": "t", "mode": "upsert", "key": ["a", "b"], "timeout": 5, "status": "how"}
        made = PostgreSQL(**given(model_of(PostgreSQL).model_validate(written)))
        assert made.tentative and made.key == ("a", "b") and made.timeout == 5 and made.ledger == "unbroken_ledger"

    def test_the_flow_gives_it_its_name(self) -> None:
        flow = Dataflow("orders")
        declared = sink()
        flow.sink("out", "totals", declared)
        assert declared.identity == "orders/out"


class TestSecrets:
    def test_they_are_not_shown(self) -> None:
        shown = f"{sink(url=URL)!r} {sink(url=URL)} {sink(url=URL).address!r} {DatabaseAddress(URL)}"
        assert "db.example" in shown and "shop" in shown
        assert SECRET not in shown and "pw-7" not in shown

    def test_they_are_taken_out_of_what_others_say(self) -> None:
        told = str(sink(url=URL).failure(RuntimeError(f"could not use {URL} with {SECRET}")))
        assert "pw-7" not in told and "***" in told

    def test_an_address_that_cannot_be_read_is_not_shown_either(self) -> None:
        assert {repr(DatabaseAddress(url)) for url in UNREADABLE} == {"PostgreSQL"}


def test_a_server_that_is_away_is_told_in_time() -> None:
    away = sink(url="postgresql://me:hush@127.0.0.1:1/x")
    began = time.monotonic()
    with pytest.raises(UnbrokenError, match=r"port=1 .*cannot be reached.*refused") as raised:
        away.occupied()
    with pytest.raises(UnbrokenError, match="cannot be reached"):
        away.open(Path()).deliver(header(1), unit(1))
    assert time.monotonic() - began < 5
    assert "hush" not in str(raised.value)


class TestRows:
    def test_an_unknown_type_is_told_with_its_column(self) -> None:
        with pytest.raises(UnbrokenError, match=r"Column 'm' is of type .*cast it in the segment"):
            sql_type(pa.field("m", pa.month_day_nano_interval()))

    @pytest.mark.parametrize(
        ("kind", "good", "bad"),
        [
            (pa.int32(), ["int4", "int8", "numeric"], ["int2", "float8", "text"]),
            (pa.float64(), ["float8"], ["float4", "numeric"]),
            (
                pa.string(),
                ["text", "varchar", "uuid", "mood", "bytea", "jsonb"],
                ["int8", "date", "timestamptz", "bool"],
            ),
            (pa.timestamp("us"), ["timestamp"], ["timestamptz", "date"]),
            (pa.decimal128(10, 2), ["numeric"], ["float8", "int8"]),
            (pa.list_(pa.int32()), ["jsonb", "json", "text"], ["_int4"]),
            (pa.binary(), ["bytea"], ["text"]),
        ],
    )
    def test_only_columns_that_hold_every_value_take_it(
        self, kind: pa.DataType, good: list[str], bad: list[str]
    ) -> None:
        field = pa.field("c", kind)
        assert [name for name in (*good, *bad) if takes(name, field)] == good

    def test_null_is_nothing_and_text_is_in_quotes(self) -> None:
        table = pa.table({"t": ["", None, 'a "b"'], "b": [b"ab", None, b""], "n": [1, None, 3]})
        data = b"".join(copy_data(table, dict.fromkeys(table.column_names, "")))
        assert data == b'"","\\x6162",1\n,,\n"a ""b""","\\x",3\n'

    def test_a_slice_of_binary_values(self) -> None:
        values = [b"zero", None, b"two", b"", b"\xff\x00", b"five"]
        table = pa.table({"b": values}).slice(1, 4)
        data = b"".join(copy_data(table, {"b": "bytea"}))
        assert data == b'\n"\\x74776f"\n"\\x"\n"\\xff00"\n'

    def test_rows_are_made_some_thousand_at_a_time(self) -> None:
        table = pa.table({"n": range(2 * BATCH_ROWS + 1)})
        assert [part.count(b"\n") for part in copy_data(table, {"n": ""})] == [BATCH_ROWS, BATCH_ROWS, 1]

    def test_text_that_does_not_fit_is_found(self) -> None:
        broken = pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
        )
        table = pa.table({"a": ["x"], "b": ["\0"], "c": [{"d": "\0"}], "e": broken, "n": [1]})
        assert unfit_text(table) == ["b", "c", "e"]
