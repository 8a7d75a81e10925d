"""The history of a flow as it is read: an entry that cannot be read hides no other."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from unbroken.coordination.documents import REPORTED, read_history, reported_from
from unbroken.protocol.values.notices import Notice, Reported, Severity, UnknownNotice
from unbroken.protocol.values.notices.ingress import IngressLed

FIRST, LAST = Reported(1, "a", IngressLed("a", 2)), Reported(9, "b", IngressLed("b", 3))
LATER = b'reported/1 {"time_ms":5,"node":"c","notice":{"kind":"moon_rose","severity":"error","fields":{"phase":3}}}'
WRITTEN = REPORTED.encode(FIRST)
UNREADABLE = {
    "another version": (WRITTEN.replace(b"reported/1", b"reported/2"), "of version 2 cannot be read"),
    "no version": (WRITTEN.partition(b" ")[2], "this is no reported"),
    "another field": (WRITTEN.replace(b'"term"', b'"turn"'), "'ingress_led': Object contains unknown field `turn`"),
    "a wrong type": (WRITTEN.replace(b'"term":2', b'"term":"2"'), "'ingress_led': Expected `int`, got `str`"),
    "an unknown severity": (WRITTEN.replace(b'"info"', b'"dire"'), "Invalid enum value 'dire'"),
    "half of it": (WRITTEN[:-9], "cannot be read"),
}


class Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def get(self) -> tuple[bytes, None]:
        return self._data, None


class Client:
    """ZooKeeper with a history."""

    def __init__(self, *entries: bytes) -> None:
        self._entries = {f"e{number:010}": data for number, data in enumerate(entries)}

    def get_children(self, path: str) -> list[str]:
        return list(self._entries)

    def get_async(self, path: str) -> Answer:
        return Answer(self._entries[path.rpartition("/")[2]])


def told(client: Any) -> list[Notice]:
    return [reported.notice for reported in read_history(client, "flow")]


@pytest.mark.parametrize(("data", "reason"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_entry_is_logged_once_and_the_others_are_read(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert data != WRITTEN
    client = Client(WRITTEN, data, REPORTED.encode(LAST))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert told(client) == [FIRST.notice, LAST.notice]
    (line,) = caplog.messages
    assert line.startswith("the entry e0000000001 of the history is left out: ") and reason in line


def test_a_kind_of_a_later_version_is_read() -> None:
    unknown = UnknownNotice("moon_rose", '{"phase": 3}', Severity.ERROR)
    assert told(Client(WRITTEN, LATER)) == [FIRST.notice, unknown]
    assert reported_from("e1", REPORTED.encode(Reported(5, "c", unknown))) == Reported(5, "c", unknown)
