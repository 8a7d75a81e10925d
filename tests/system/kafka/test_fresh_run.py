"""A run that begins from nothing on topics of an earlier one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from system.kafka.sink_child import header, sink, table, tentative
from system.kafka.sinking import Topic, read, whole
from unbroken.connectors.kafka.sink import KafkaSinkWriter
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.run import RunIdentity

pytest.importorskip("confluent_kafka")

OLD, UNASKED, NEW = RunIdentity("old"), RunIdentity("new"), RunIdentity("new", frozenset({"old"}))


@contextmanager
def opened(servers: str, topic: str, run: RunIdentity, **parameters: Any) -> Iterator[KafkaSinkWriter]:
    made = sink(servers, topic, **parameters)
    made.run = run
    writer = made.open(Path())
    try:
        yield writer
    finally:
        writer.close()


def units(servers: str, topic: str) -> list[tuple[int, int]]:
    values = [json.loads(message.value()) for message in read(servers, topic) if message.value()]
    return [(value["unit"], value["row"]) for value in values]


@pytest.mark.parametrize("parameters", [{}, {"tentative": True}], ids=["stable", "tentative"])
def test_a_new_run_drops_nothing_and_needs_a_permission(kafka: Any, topic: Topic, parameters: dict[str, Any]) -> None:
    name = topic("out")
    with opened(kafka.servers, name, OLD, **parameters) as old:
        assert all(old.deliver(header(number), table(number)) for number in range(1, 6))
        if parameters:
            assert old.deliver_tentative(tentative(5, 9), table(-9))
        before = units(kafka.servers, name)
        with opened(kafka.servers, name, UNASKED, **parameters) as unasked:
            for number in (1, 5, 6):
                with pytest.raises(UnbrokenError, match="has unit 5 of run old, and this is run new"):
                    unasked.deliver(replace(header(number), cut_ms=1), table(number))
        assert sink(kafka.servers, name, **parameters).runs() == {"old"} and units(kafka.servers, name) == before
        with (
            opened(kafka.servers, name, NEW, **parameters) as first,
            opened(kafka.servers, name, NEW, **parameters) as second,
        ):
            for number in range(1, 8):
                assert first.deliver(replace(header(number), cut_ms=1), table(number))
                assert not second.deliver(replace(header(number), cut_ms=1), table(number))
            for number in (6, 99):
                with pytest.raises(UnbrokenError, match="of run new, and this is run old"):
                    old.deliver(header(number), table(number))
            assert first.deliver(header(8), table(8)), "a superseded writer does not take the producer back"
    assert units(kafka.servers, name)[len(before) :] == whole(1, 8)
    assert sink(kafka.servers, name).runs() == {"new"}
