"""Unbroken keeps PySpark streaming pipelines producing results through failures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbroken.availability import WAIT, Availability
    from unbroken.connectors.call import Call, Unit
    from unbroken.connectors.delta import Delta
    from unbroken.connectors.files import Files
    from unbroken.connectors.generator import Generator
    from unbroken.connectors.kafka_sink import KafkaSink
    from unbroken.connectors.kafka_source import Kafka
    from unbroken.connectors.postgres import PostgreSQL
    from unbroken.connectors.push import Push
    from unbroken.connectors.sinks import Client, Console, JsonLines, Parquet
    from unbroken.connectors.spark_checkpoint import SparkCheckpoint
    from unbroken.flow import Dataflow
    from unbroken.secret import Secret

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
    "WAIT": "unbroken.availability",
    "Availability": "unbroken.availability",
    "Call": "unbroken.connectors.call",
    "Client": "unbroken.connectors.sinks",
    "Console": "unbroken.connectors.sinks",
    "Dataflow": "unbroken.flow",
    "Delta": "unbroken.connectors.delta",
    "Files": "unbroken.connectors.files",
    "Generator": "unbroken.connectors.generator",
    "JsonLines": "unbroken.connectors.sinks",
    "Kafka": "unbroken.connectors.kafka_source",
    "KafkaSink": "unbroken.connectors.kafka_sink",
    "Parquet": "unbroken.connectors.sinks",
    "PostgreSQL": "unbroken.connectors.postgres",
    "Push": "unbroken.connectors.push",
    "Secret": "unbroken.secret",
    "SparkCheckpoint": "unbroken.connectors.spark_checkpoint",
    "Unit": "unbroken.connectors.call",
}


def __getattr__(name: str) -> Any:
    """Load the public names on first use: Spark's workers import this package and need none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
