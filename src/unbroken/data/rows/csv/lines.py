"""Rows from CSV, one record per line.

The rules: values are separated by commas and may be put in double quotes, a quote within them doubled; a line
break within a value is not supported, because one forgotten quote would then swallow the rest of the file.
An empty value is null, ``""`` the empty string. Times are ISO-8601 or epoch milliseconds, binary is base64,
booleans are true or false.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from unbroken.data.rows.budget import clip
from unbroken.data.rows.csv.columns import at_once, is_one, one_array, sift
from unbroken.data.rows.csv.pattern import pattern_of
from unbroken.data.rows.parsed import Rows
from unbroken.data.rows.text.line_pattern import LinePattern
from unbroken.data.rows.text.line_scan import Bools, LineFormat, Lines, bad_row, scan
from unbroken.data.rows.text.plausibility import FALSE, TRUE, as_bools


def csv_can_hold(kind: pa.DataType) -> bool:
    """Whether a CSV column can have this type."""
    return not pa.types.is_nested(kind)


def parse_csv(data: bytes, schema: pa.Schema, origin: str, max_line_bytes: int, *, header: bool) -> Rows:
    """The rows of a CSV text in order; bad ones are set aside.

    With ``header`` the first line names the columns, which may come in any order: those that the schema does
    not have are ignored and missing ones are null. A header that has none of the schema's columns, or one of
    them twice, makes the whole text one bad row. Without it every line must have exactly the schema's
    columns.
    """
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    names: Sequence[str] = schema.names
    first_number = 1
    if header and data:
        line, _, data = data.partition(b"\n")
        first_number = 2
        try:
            names = _header(line, schema, max_line_bytes)
        except ValueError as error:
            return Rows(schema.empty_table(), (bad_row(line, str(error), f"{origin}:1"),))
    return scan(Lines.of(data, first_number), CsvFormat(schema, names), origin, max_line_bytes)


def _header(line: bytes, schema: pa.Schema, max_line_bytes: int) -> list[str]:
    if len(line) > max_line_bytes:
        raise ValueError(f"the header is longer than {max_line_bytes} bytes; the file was left out")
    try:
        names = next(csv.reader([line.decode().rstrip("\r")], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"the header cannot be read ({error}); the file was left out") from None
    names = [name.strip() for name in names]
    known = [name for name in names if name in schema.names]
    if not known:
        raise ValueError(
            f"the header has none of the columns {', '.join(schema.names)}; the file was left out "
            f"(say header=False if files have none)"
        )
    if len(set(known)) != len(known):
        raise ValueError("the header names a column twice; the file was left out")
    return names


class CsvFormat(LineFormat):
    """Reads pieces with Arrow's CSV reader; where it refuses one, splits lines into values and sifts each column.

    Whether a line is right cannot depend on its neighbours: the vectorised reader and `columns` agree on every value.
    """

    sifts = True

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self.schema = schema
        # Columns that are not asked for may have any name, even one that comes twice.
        self._names = [name if name in schema.names else f"\x00{i}" for i, name in enumerate(names)]
        self._pattern = _line_pattern(len(self._names))
        self._bytes_pattern = rf"(?s)^{_ANY_VALUE}(?:,{_ANY_VALUE}){{{len(self._names) - 1}}}$"
        self._typed = self._convert_options({field.name: _wire_type(field.type) for field in schema})
        self._as_text = self._convert_options({field.name: pa.string() for field in schema})

    def _convert_options(self, types: dict[str, pa.DataType]) -> pyarrow.csv.ConvertOptions:
        return pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=self.schema.names,
            include_missing_columns=True,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=list(TRUE),
            false_values=list(FALSE),
        )

    def pattern(self) -> LinePattern | None:
        return pattern_of(self.schema, self._names)

    def tidy(self, lines: Lines) -> Bools:
        """Lines without a bare carriage return, which Arrow's reader takes for a line break."""
        return ~self._with_return(lines)

    def hopeless(self, lines: Lines) -> Bools:
        """Lines with a carriage return within, or with another number of values, if none of them is in quotes."""
        filled = int((lines.ends > lines.starts).sum())
        if b'"' not in lines.data and lines.data.count(b",") == filled * (len(self._names) - 1):
            # Most likely each line has its number; if not, the piece is refused and looked at closely.
            return self._with_return(lines)
        return self._miscounted(lines)

    def _miscounted(self, lines: Lines) -> Bools:
        wrong = self._with_return(lines)
        buffer = np.frombuffer(lines.data, np.uint8)
        commas = np.flatnonzero(buffer == ord(","))
        quotes = np.flatnonzero(buffer == ord('"'))
        values = np.searchsorted(commas, lines.ends) - np.searchsorted(commas, lines.starts) + 1
        quoted = np.searchsorted(quotes, lines.ends) > np.searchsorted(quotes, lines.starts)
        return np.asarray(wrong | (~quoted & (values != len(self._names))), np.bool_)

    def _with_return(self, lines: Lines) -> Bools:
        found = np.zeros(len(lines), np.bool_)
        if b"\r" in lines.data:
            returns = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == ord("\r"))
            owners = np.searchsorted(lines.starts, returns, "right") - 1
            found[owners[returns < lines.ends[owners]]] = True
        return found

    def read_piece(self, piece: bytes, rows: int) -> pa.Table:
        # An unclosed quote swallows line breaks. The last line is put in twice so that this shows in the
        # number of rows even if it is the last line that does not close.
        last = piece.rstrip(b"\r\n").rpartition(b"\n")[2]
        table = self._read(piece + b"\n" + last + b"\n", self._typed)
        if table.num_rows != rows + 1:
            raise ValueError("a quoted value does not end on its line")
        return self._finished(table.slice(0, rows))

    def read_lines(self, lines: list[bytes]) -> tuple[pa.Table, list[int]]:
        text = b"\n".join(lines)
        sound: Sequence[int] = range(len(lines))
        if not self._all_sound(text):
            sound = np.flatnonzero(self._sound(lines)).tolist()
            text = b"\n".join(lines[i] for i in sound)
        if not sound:
            return self.schema.empty_table(), list(range(len(lines)))
        texts = self._read(text + b"\n", self._as_text)
        if texts.num_rows != len(sound):
            raise ValueError("a quoted value does not end on its line")
        columns, wrong = [], np.zeros(len(sound), np.bool_)
        for field, column in zip(self.schema, texts.columns, strict=True):
            values, unfit = sift(one_array(column), field.type)
            columns.append(values)
            wrong |= unfit
            if not field.nullable:
                wrong |= np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_)
        table = pa.Table.from_arrays(columns, schema=self.schema).filter(pa.array(~wrong))
        bad = np.ones(len(lines), np.bool_)
        bad[np.array(sound)[~wrong]] = False
        return table, np.flatnonzero(bad).tolist()

    def reason(self, line: bytes) -> str:
        broken = self._broken(line)
        if broken is not None:
            return broken
        texts = dict(zip(self._names, _values(line), strict=True))
        for field in self.schema:
            text = texts.get(field.name)
            if text is None and not field.nullable:
                return f"column {field.name!r} must not be empty"
            if text is not None and not is_one(text, field.type):
                return f"column {field.name!r} must be {field.type}, got the invalid value {clip(repr(text[:61]), 60)}"
        return "cannot be read"

    def _all_sound(self, text: bytes) -> bool:
        """Whether no line of a text is broken, if that is seen at once."""
        if b'"' in text or b"\r" in text or self._miscounted(Lines.of(text)).any():
            return False
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return True

    def _sound(self, lines: list[bytes]) -> Bools:
        """Which lines are not `_broken`."""
        if len(self._names) > _MOST_IN_PATTERN:
            return np.array([self._broken(line) is None for line in lines], np.bool_)
        texts = pa.array(lines, pa.binary())
        quoted = as_bools(pc.match_substring(texts, '"'))
        right = np.asarray(pc.count_substring(texts, ","), np.int64) + 1 == len(self._names)
        if quoted.any():
            right = np.where(quoted, as_bools(pc.match_substring_regex(texts, self._bytes_pattern)), right)
        right &= ~as_bools(pc.match_substring(texts, "\r"))
        return np.asarray(right & as_bools(pc.match_substring_regex(texts, _UTF8)), np.bool_)

    def _broken(self, line: bytes) -> str | None:
        """What is wrong with a line before its values are looked at."""
        if b"\r" in line:
            return "a carriage return within the line"
        if b'"' in line:
            if self._pattern.fullmatch(line) is None:
                values = _values(line)
                wrong_number = f"Expected {len(self._names)} columns, got {len(values)}"
                return wrong_number if values else "a quoted value does not end on its line"
        elif line.count(b",") + 1 != len(self._names):
            return f"Expected {len(self._names)} columns, got {line.count(b',') + 1}"
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return f"not UTF8: {error.reason} at byte {error.start}"
        return None

    def _read(self, data: bytes, options: pyarrow.csv.ConvertOptions) -> pa.Table:
        reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._names)
        parsing = pyarrow.csv.ParseOptions(ignore_empty_lines=True)
        return pyarrow.csv.read_csv(pa.BufferReader(data), reading, parsing, options)

    def _finished(self, table: pa.Table) -> pa.Table:
        columns = []
        for field, column in zip(self.schema, table.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"column {field.name!r} must not be empty")
            if column.type != field.type:
                column = pa.chunked_array([at_once(one_array(column), field.type)])
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)


_VALUE = re.compile(rb'"(?:[^"]++|"")*+"[^,]*+|(?!")[^,]*+')
"""One value as Arrow's reader finds it: a quote counts at the beginning only, and what follows its end is added."""
_ANY_VALUE = r'(?:"(?:[^"]|"")*"(?:[^",][^,]*)?|[^",][^,]*|)'
"""The same for Arrow's regular expressions, which know no possessive ones."""

_MOST_IN_PATTERN = 50
"""Columns; the pattern of a whole line grows with them."""

_UTF8 = (
    r"(?s)^(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    r"|\xf4[\x80-\x8f][\x80-\xbf]{2})*$"
)
_QUOTED = re.compile(rb'"((?:[^"]++|"")*+)"')


def _values(line: bytes) -> list[str | None]:
    """The values of a line, as Arrow's reader finds them; none if a quote does not end."""
    values: list[str | None] = []
    end = -1
    while end < len(line):
        found = _VALUE.match(line, end + 1)
        if found is None:
            return []
        end, value = found.end(), found[0]
        if value.startswith(b'"'):
            quoted = _QUOTED.match(value)
            assert quoted is not None
            values.append((quoted[1].replace(b'""', b'"') + value[quoted.end() :]).decode(errors="replace"))
        else:
            values.append(value.decode(errors="replace") or None)
    return values


def _line_pattern(columns: int) -> re.Pattern[bytes]:
    value = rb"(?:" + _VALUE.pattern + rb")"
    return re.compile(value + rb"(?:," + value + rb"){%d}" % (columns - 1))


def _wire_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's reader is to make of a column; text is looked at by this package."""
    return (
        kind
        if pa.types.is_primitive(kind) and not pa.types.is_temporal(kind) and not pa.types.is_decimal(kind)
        else pa.string()
    )
