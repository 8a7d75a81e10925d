"""Connectors say of each failure whether it lies in the rows, which are then set aside, or may pass."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as LibraryError
from confluent_kafka import KafkaException
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError
from psycopg import InterfaceError, OperationalError, errors

from unbroken.connectors.delta import sink as delta
from unbroken.connectors.delta.schema import check_partitions, delta_types
from unbroken.connectors.failures import is_passing
from unbroken.connectors.kafka.calls import KafkaServers
from unbroken.connectors.kafka.delivery import _faults
from unbroken.connectors.kafka.messages import KafkaMessage, RowFormat
from unbroken.connectors.postgres import sink as postgres
from unbroken.connectors.postgres.rows import sql_type
from unbroken.connectors.postgres.table import check_fit

SCHEMA = pa.schema({"n": pa.int64()})


def messages(columns: dict[str, object], **format: object) -> list[KafkaMessage]:
    return list(RowFormat(None, **format).messages(pa.table(columns), []))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: messages({"n": [1], "t": pa.array([None], pa.string())}, topic_column="t"),
        lambda: messages({"n": [1], "t": ["not a topic!"]}, topic_column="t"),
        lambda: messages({"n": [1], "t": [".."]}, topic_column="t"),
        lambda: messages({"n": [1], "t": ["good"], "h": [[{"a": 1}]]}, topic_column="t", headers="h"),
        lambda: messages({"n": [1]}, key=("k",)),
        lambda: messages({"value": [1.5]}, kind="raw"),
        lambda: delta_types(pa.schema({"n": pa.null()})),
        lambda: check_partitions(SCHEMA, ["z"], "here"),
        lambda: check_fit(SCHEMA, {}, "t", None, None),
        lambda: sql_type(pa.field("n", pa.month_day_nano_interval())),
    ],
)
def test_what_lies_in_the_rows_is_set_aside(refuse: Callable[[], object]) -> None:
    with pytest.raises(Exception) as found:
        refuse()
    assert not is_passing(found.value)


KAFKA_PASSING = (
    *(LibraryError._TRANSPORT, LibraryError._TIMED_OUT, LibraryError._ALL_BROKERS_DOWN, LibraryError._MSG_TIMED_OUT),
    *(LibraryError.NOT_ENOUGH_REPLICAS, LibraryError.TOPIC_AUTHORIZATION_FAILED, LibraryError.UNKNOWN_TOPIC_OR_PART),
    *(LibraryError._FATAL, LibraryError._AUTHENTICATION, LibraryError.INVALID_MSG, LibraryError._INVALID_ARG),
)
KAFKA_OF_ROWS = (LibraryError.MSG_SIZE_TOO_LARGE, LibraryError.INVALID_RECORD, LibraryError.TOPIC_EXCEPTION)


@pytest.mark.parametrize(
    ("code", "passing"), [*((code, True) for code in KAFKA_PASSING), *((code, False) for code in KAFKA_OF_ROWS)]
)
def test_kafka(code: int, passing: bool) -> None:
    with (
        pytest.raises(Exception) as found,
        KafkaServers("broker:9092").explained("Unit 1 is not known to be written"),
        _faults(lambda _: [KafkaMessage("t", b"v", None, None)]),
    ):
        raise KafkaException(LibraryError(code))
    assert is_passing(found.value) == passing


@pytest.mark.parametrize(
    ("error", "of_rows"),
    [
        *((kind("no"), False) for kind in (OperationalError, InterfaceError, errors.AdminShutdown, TimeoutError)),
        *((kind("no"), False) for kind in (errors.UndefinedTable, errors.InsufficientPrivilege, errors.DiskFull)),
        *((kind("no"), False) for kind in (errors.SerializationFailure, errors.DeadlockDetected, errors.QueryCanceled)),
        *((kind("no"), False) for kind in (errors.ReadOnlySqlTransaction, errors.TooManyConnections, MemoryError)),
        *(
            (kind("no"), True)
            for kind in (errors.NumericValueOutOfRange, errors.NotNullViolation, errors.CheckViolation)
        ),
        *(
            (kind("no"), True)
            for kind in (errors.ProgramLimitExceeded, errors.RaiseException, ValueError, RuntimeError)
        ),
    ],
)
def test_postgresql(error: Exception, of_rows: bool) -> None:
    assert postgres.of_rows(error) == of_rows


@pytest.mark.parametrize(
    ("error", "of_rows"),
    [
        (OSError("Generic S3 error: error sending request"), False),
        (DeltaError("Kernel error: Error interacting with object store: connection refused"), False),
        (CommitFailedError("version 3 is there"), False),
        (DeltaProtocolError("unsupported reader"), False),
        (TimeoutError(), False),
        (Exception("operation timed out"), False),
        (SchemaMismatchError("Cannot merge types"), True),
        (DeltaError("Invariant violations: Check or Invariant (n > 0) violated by value in row: [0]"), True),
        (DeltaError("Arrow error: Cast error: Can't cast value"), True),
        (pa.ArrowInvalid("x"), True),
    ],
)
def test_delta(error: Exception, of_rows: bool) -> None:
    assert delta.of_rows(error) == of_rows
