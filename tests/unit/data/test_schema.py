"""Schemas given as DDL are understood without a JVM, and as Spark would understand them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from unbroken.data.schema import arrow_schema, parse_schema
from unbroken.errors import UnbrokenError

ATOMIC: list[DataType] = [
    ByteType(),
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    StringType(),
    BinaryType(),
    BooleanType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
    DecimalType(12, 3),
]


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("user string, n long", [("user", StringType(), True), ("n", LongType(), True)]),
        ("a BIGINT NOT NULL, b: Int", [("a", LongType(), False), ("b", IntegerType(), True)]),
        ("`a b` tinyint,`c``d` smallint", [("a b", ByteType(), True), ("c`d", ShortType(), True)]),
        ("d decimal, e decimal(5), f decimal(38,38)", [("d", DecimalType(10, 0), True)]),
        ("m map<string,array<int>>", [("m", MapType(StringType(), ArrayType(IntegerType())), True)]),
        ("not int, null string", [("not", IntegerType(), True), ("null", StringType(), True)]),
        (" \n a\tint \n", [("a", IntegerType(), True)]),
    ],
)
def test_ddl_is_read(ddl: str, expected: list[tuple[str, DataType, bool]]) -> None:
    fields = parse_schema(ddl).fields
    assert [(f.name, f.dataType, f.nullable) for f in fields][: len(expected)] == expected


def test_structs_nest_and_keep_not_null_and_comments() -> None:
    schema = parse_schema("s struct<a: int NOT NULL, b struct<c:timestamp_ntz>, e struct<>> COMMENT 'it\\'s'")
    inner = StructType([StructField("c", TimestampNTZType())])
    expected = StructType(
        [StructField("a", IntegerType(), False), StructField("b", inner), StructField("e", StructType([]))]
    )
    assert schema["s"].dataType == expected
    assert schema["s"].metadata == {"comment": "it's"}


def test_a_struct_type_is_taken_as_it_is() -> None:
    schema = StructType([StructField("a", IntegerType())])
    assert parse_schema(schema) is schema


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a", "expected the type of 'a', found the end"),
        ("a strng, b int", "column 'a' has a type that is not known.*found 'strng, b int'"),
        ("a int b int", "expected ',', found 'b int'"),
        ("a int,", "expected a column name, found the end"),
        ("a array<int", "expected '>'"),
        ("a map<int>", "expected ',', found '>'"),
        ("a int NOT", "expected NULL after NOT of column 'a'"),
        ("a decimal(50,2)", "precision must be 1 to 38"),
        ("a decimal(5,6)", "scale at most"),
        ("a decimal(x)", "expected the precision of a decimal, found 'x"),
        ("a int, A string", "'a' and 'A'.*rename"),
        ("a-b int", "cannot be read at '-b int'.*backquotes"),
        ("`` int", "column name is empty"),
        ("a " + "array<" * 60 + "int" + ">" * 60, "more than 50 levels"),
    ],
)
def test_what_is_wrong_is_named(ddl: str, message: str) -> None:
    with pytest.raises(UnbrokenError, match=message):
        parse_schema(ddl)


def nested(children: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(st.tuples(children, st.booleans()), max_size=3)
    return st.one_of(
        children.map(ArrayType),
        st.builds(MapType, st.sampled_from(ATOMIC), children),
        fields.map(lambda f: StructType([StructField(f"f{i}", t, n) for i, (t, n) in enumerate(f)])),
    )


@given(st.recursive(st.sampled_from(ATOMIC), nested, max_leaves=8))
def test_every_type_is_read_back_from_its_own_text(kind: DataType) -> None:
    # simpleString leaves NOT NULL of nested fields out, so texts are compared.
    assert parse_schema(f"c {kind.simpleString()}")["c"].dataType.simpleString() == kind.simpleString()


def test_arrow_form_needs_no_session() -> None:
    schema = parse_schema("a timestamp, b timestamp_ntz NOT NULL, c decimal(10,2), d array<string>, e byte")
    assert arrow_schema(schema) == pa.schema(
        [
            pa.field("a", pa.timestamp("us", "UTC")),
            pa.field("b", pa.timestamp("us"), nullable=False),
            pa.field("c", pa.decimal128(10, 2)),
            pa.field("d", pa.list_(pa.field("element", pa.string()))),
            pa.field("e", pa.int8()),
        ]
    )
