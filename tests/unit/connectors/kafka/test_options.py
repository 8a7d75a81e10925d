"""Settings that the Kafka library does not know are refused when the flow is checked, not when a node starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

from unbroken import Client, Dataflow, Kafka, KafkaSink, Secret
from unbroken.connectors.kafka.client import Option
from unbroken.errors import FlowError
from unbroken.flow.plan import build_topology

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "Spark's prefix": (
        {"kafka.security.protocol": "SASL_SSL"},
        "options has 'kafka.security.protocol', as Spark writes it",
        "write 'security.protocol'",
    ),
    "Spark's options": (
        {"startingOffsets": "latest"},
        "options has 'startingOffsets', which is Spark's",
        "write start=",
    ),
    "a wrong name": ({"secure.protocol": "SSL"}, "which librdkafka does not know", "correct the name"),
    "a wrong value": ({"security.protocol": "SLL"}, 'Invalid value "SLL"', "correct it"),
    "a number out of range": ({"fetch.min.bytes": -4}, "value -4 is outside allowed range", "correct it"),
    "Java's settings": ({"ssl.truststore.location": "x"}, "use `ssl.ca.location`", "correct it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_the_library_does_not_take(case: str) -> None:
    options, what, remedy = REFUSED[case]
    for made in (Kafka("h:9092", "t", options=options), KafkaSink("h:9092", "t", options=options)):
        (problem,) = made.problems()
        assert what in problem.what and remedy in problem.remedy


def test_every_setting_is_looked_at_and_no_client_is_made() -> None:
    before = os.listdir("/proc/self/task")
    options: dict[str, Option] = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/no/such/file.pem",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": Secret.env("KAFKA_PASSWORD"),
        "linger.ms": 5,
        "fetch.min.bytes": 1,
        "log.connection.close": False,
        "debug": "broker",
    }
    assert not Kafka("h:9092", "t", options=options).problems()
    assert not KafkaSink("h:9092", "t", options=options).problems()
    assert len(Kafka("h:9092", "t", options={**options, "a": 1, "b": 2}).problems()) == 2
    assert os.listdir("/proc/self/task") == before


def test_the_value_of_a_secret_is_not_told() -> None:
    for value in ("hunter2", Secret.env("KAFKA_KEY")):
        told, *_ = Kafka("h:9092", "t", options={"ssl.keystore.key": value}).problems()
        assert "'ssl.keystore.key', which librdkafka does not know" in told.what and "hunter2" not in str(told)


def test_the_log_of_orders_takes_the_same_settings() -> None:
    flow = Dataflow("led", nodes=2, ordering="leader", order_log="kafka://h:9092", order_log_options={"kafka.acks": 1})
    flow.source("t", Kafka("h:9092", "t"))
    flow.segment("t", name="seg")(lambda rows: rows)
    flow.sink("out", "seg", Client())
    with pytest.raises(FlowError, match=r"order_log: options has 'kafka\.acks', as Spark writes it\n.*'acks'"):
        build_topology(flow)
