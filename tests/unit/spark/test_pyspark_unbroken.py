"""The module by whose name Spark finds the ``unbroken`` format right after installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

import pyspark_unbroken
from unbroken.spark.source import UnbrokenSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_module_exposes_the_source_under_the_name_spark_looks_for() -> None:
    assert pyspark_unbroken.DefaultSource is UnbrokenSource
    assert issubclass(pyspark_unbroken.DefaultSource, DataSource)
    assert pyspark_unbroken.DefaultSource.name() == "unbroken"


def test_the_format_is_known_to_a_session(spark: SparkSession) -> None:
    reader = spark.readStream.format("unbroken").schema("k long")
    frame = reader.options(gate="", secret="", replica="", inbox="", streams="").load()
    assert frame.isStreaming and frame.schema.simpleString() == "struct<k:bigint>"
