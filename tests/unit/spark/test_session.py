"""Settings of a session that only a running one shows."""

from __future__ import annotations

from pyspark.sql import SparkSession


def test_the_configuration_does_not_keep_where_properties_came_from(spark: SparkSession) -> None:
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    assert configuration.get("fs.defaultFS"), "the properties themselves are there"
    assert configuration.getPropertySources("fs.defaultFS") is None
