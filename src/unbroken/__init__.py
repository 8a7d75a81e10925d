"""Unbroken keeps PySpark streaming pipelines producing results through failures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.connectors.call import Call, Unit
    from unbroken.connectors.delta.sink import Delta
    from unbroken.connectors.files.sinks import Client, Console, JsonLines, Parquet
    from unbroken.connectors.files.source import Files
    from unbroken.connectors.generator import Generator
    from unbroken.connectors.kafka.sink import KafkaSink
    from unbroken.connectors.kafka.source import Kafka
    from unbroken.connectors.kafka.spark_checkpoint import SparkCheckpoint
    from unbroken.connectors.postgres.sink import PostgreSQL
    from unbroken.connectors.push.source import Push
    from unbroken.flow.availability import WAIT, Availability
    from unbroken.flow.dataflow import Dataflow
    from unbroken.security.secret import Secret

__version__ = "0.1.0"

__all__ = [
    "WAIT",
    "Availability",
    "Call",
    "Client",
    "Console",
    "Dataflow",
    "Delta",
    "Files",
    "Generator",
    "JsonLines",
    "Kafka",
    "KafkaSink",
    "Parquet",
    "PostgreSQL",
    "Push",
    "Secret",
    "SparkCheckpoint",
    "Unit",
    "__version__",
]

_HOMES = {
    "WAIT": "unbroken.flow.availability",
    "Availability": "unbroken.flow.availability",
    "Call": "unbroken.connectors.call",
    "Client": "unbroken.connectors.files.sinks",
    "Console": "unbroken.connectors.files.sinks",
    "Dataflow": "unbroken.flow.dataflow",
    "Delta": "unbroken.connectors.delta.sink",
    "Files": "unbroken.connectors.files.source",
    "Generator": "unbroken.connectors.generator",
    "JsonLines": "unbroken.connectors.files.sinks",
    "Kafka": "unbroken.connectors.kafka.source",
    "KafkaSink": "unbroken.connectors.kafka.sink",
    "Parquet": "unbroken.connectors.files.sinks",
    "PostgreSQL": "unbroken.connectors.postgres.sink",
    "Push": "unbroken.connectors.push.source",
    "Secret": "unbroken.security.secret",
    "SparkCheckpoint": "unbroken.connectors.kafka.spark_checkpoint",
    "Unit": "unbroken.connectors.call",
}


def __getattr__(name: str) -> Any:
    """Load the public names on first use: Spark's workers import this package and need none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
