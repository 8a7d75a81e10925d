"""Spark schemas and their Arrow form, one agreed rendering for sources, units and readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from unbroken.data.ddl import parse_ddl
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

RESERVED = "__ub_"
"""How no column of a user begins."""


def parse_schema(schema: str | StructType) -> StructType:
    """A schema given as DDL (``"user string, n long"``) or as a StructType. Works without a Spark session.

    Raises
    ------
    UnbrokenError
        If the DDL cannot be understood; the message shows the offending piece.
    """
    return parse_ddl(schema) if isinstance(schema, str) else schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark itself uses for ``schema``, with timestamps in UTC. Needs no session."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def check_names(schema: StructType) -> None:
    """Raise UnbrokenError if two columns of a result have the same name, whatever its case, or one is reserved."""
    names = [name.lower() for name in schema.names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UnbrokenError(f"columns occur more than once: {', '.join(repeated)}", "rename or drop them")
    reserved = [name for name in names if name.startswith(RESERVED)]
    if reserved:
        raise UnbrokenError(f"column '{reserved[0]}' is reserved for Unbroken", "rename it")
