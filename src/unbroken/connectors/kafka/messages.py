"""Arrow tables as Kafka messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from unbroken.connectors.kafka.client import UnfitRows, is_topic
from unbroken.data.rows.json.output import SLICE_ROWS, json_lines, json_values

Headers = list[tuple[str, str | bytes | None]]

RAW_KEY, RAW_VALUE = "key", "value"
"""The columns of the raw format; Spark's own Kafka sink takes the same."""


class KafkaMessage(NamedTuple):
    """What becomes of a row."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers | None


@dataclass(frozen=True)
class RowFormat:
    """How rows become messages.

    ``json``: the value is an object of all columns but ``topic_column`` and ``headers``. The key is the content of the
    ``key`` column: text and bytes as they are, anything else as its JSON; of several columns it is an object of them.
    ``raw``: the columns ``value`` and ``key``, binary or string, are taken as they are.
    """

    topic: str | None
    kind: str = "json"
    key: tuple[str, ...] = ()
    topic_column: str | None = None
    headers: str | None = None

    def check(self, names: Sequence[str]) -> None:
        """Raise UnfitRows if rows with these columns cannot be written."""
        wanted = [*self.key, *(name for name in (self.topic_column, self.headers) if name is not None)]
        if self.kind == "raw":
            wanted.append(RAW_VALUE)
        missing = [name for name in wanted if name not in names]
        if missing:
            raise UnfitRows(
                f"The results have no column {', '.join(map(repr, missing))}, which the Kafka sink is told to use; "
                f"they have {', '.join(names)}. Correct the sink, or let the segment produce the column."
            )
        if self.kind == "json" and not set(names) - {self.topic_column, self.headers}:
            raise UnfitRows(
                "The results have no column beside topic and headers, so there is nothing to write; add a column in "
                "the segment."
            )
        others = [name for name in names if name not in {*wanted, RAW_KEY}]
        if self.kind == "raw" and others:
            raise UnfitRows(
                f"With format='raw' the column {', '.join(map(repr, others))} would be lost: only {RAW_KEY} and "
                f"{RAW_VALUE} are written. Leave it out in the segment, or use format='json'."
            )

    def messages(self, table: pa.Table, headers: Headers) -> Iterator[KafkaMessage]:
        """The rows in their order; ``headers`` are added to each. Some thousand rows are held encoded at a time."""
        self.check(table.column_names)
        # Slices of the same rows as in json_lines.
        values = self._json(table) if self.kind == "json" else None
        for start in range(0, table.num_rows, SLICE_ROWS):
            part = table.slice(start, SLICE_ROWS)
            columns = (
                self._topics(part),
                next(values) if values is not None else _bytes(part, RAW_VALUE),
                self._keys(part),
                self._headers(part, headers),
            )
            yield from map(KafkaMessage._make, zip(*columns, strict=True))

    def _json(self, table: pa.Table) -> Iterator[list[bytes]]:
        shown = [name for name in table.column_names if name not in (self.topic_column, self.headers)]
        for lines in json_lines(table.select(shown)):
            # A line break within a text is written as an escape, so these are the ends of rows.
            yield lines.split(b"\n")[:-1]

    def _keys(self, part: pa.Table) -> Sequence[bytes | None]:
        if self.kind == "raw":
            name = self.key[0] if self.key else RAW_KEY
            return _bytes(part, name) if name in part.column_names else [None] * part.num_rows
        if not self.key:
            return [None] * part.num_rows
        if len(self.key) > 1:
            (lines,) = json_lines(part.select(list(self.key)))
            return lines.split(b"\n")[:-1]
        column = _plain(part.column(self.key[0]))
        if _is_text(column.type) or _is_binary(column.type):
            return _bytes(part, self.key[0])
        return [None if value is None else _text(value).encode() for value in json_values(column)]

    def _topics(self, part: pa.Table) -> Sequence[str]:
        otherwise = self.topic or ""
        if self.topic_column is None:
            return [otherwise] * part.num_rows
        topics = [otherwise if name is None else name for name in part.column(self.topic_column).to_pylist()]
        if not all(isinstance(name, str) and name for name in topics):
            raise UnfitRows(
                f"A row names no topic in the column {self.topic_column!r}; fill the column with strings, or give "
                "topic= for such rows."
            )
        wrong = next((name for name in set(topics) if not is_topic(name)), None)
        if wrong is not None:
            raise UnfitRows(
                f"A row names the topic {wrong[:60]!r} in the column {self.topic_column!r}, which Kafka does not take "
                "as a name; use letters, digits, '.', '_' and '-', at most 249."
            )
        return topics

    def _headers(self, part: pa.Table, further: Headers) -> Sequence[Headers | None]:
        if self.headers is None:
            return [further or None] * part.num_rows
        return [_pairs(value, self.headers) + further or None for value in part.column(self.headers).to_pylist()]


def _pairs(value: Any, name: str) -> Headers:
    """A row's headers: a map, or an array of structs of key and value as in Spark's Kafka sink."""
    try:
        pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else tuple(pair) for pair in value or ()]
        if all(isinstance(key, str) and (item is None or isinstance(item, str | bytes)) for key, item in pairs):
            return pairs
    except (TypeError, KeyError, ValueError):
        pass
    raise UnfitRows(
        f"The column {name!r} does not hold headers; make it a map of strings to strings or binary, or an array of "
        "structs of key (string) and value (binary)."
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _bytes(part: pa.Table, name: str) -> list[bytes | None]:
    column = _plain(part.column(name))
    if _is_text(column.type):
        return list(column.cast(pa.large_binary()).to_pylist())
    if not _is_binary(column.type):
        raise UnfitRows(
            f"The column {name!r} is {column.type}, but the Kafka sink writes it as it is; cast it to string or binary "
            "in the segment, or use format='json'."
        )
    return list(column.to_pylist())


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pt.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))
