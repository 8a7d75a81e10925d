"""Requests of an operator: what is reported while they are carried out."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kazoo.client import KazooClient

from unbroken.observe.notices import text_of
from unbroken.operations import requests
from unbroken.operations.requests import watch_layout
from unbroken.protocol.values.notices.base import Reported
from unbroken.protocol.values.notices.placement import NodeDrained
from unbroken.protocol.values.notices.upgrades import UpgradeReady


def test_progress_is_reported_when_the_history_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full history stays as long as it is: an old entry is removed for each that is added."""
    entries = [Reported(number, "node-1", UpgradeReady(number)) for number in range(6)]
    seen = iter([entries[:3], entries[1:4], entries[1:4], entries[3:6]])
    looks = iter([False, False, True])
    monkeypatch.setattr(requests, "read_history", lambda client, flow: next(seen))
    monkeypatch.setattr(requests, "current_layout", lambda client, flow: None)
    monkeypatch.setattr(requests, "LOOK_S", 0.0)
    told: list[str] = []
    done: Any = lambda layout: next(looks)  # noqa: E731
    watch_layout(cast(KazooClient, None), "flow", done, 30.0, told.append, "it")
    assert told == [text_of(entry.notice) for entry in entries[3:]]


def test_what_is_reported_with_the_layout_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller publishes both as one change, so nothing has to be waited for."""
    drained = Reported(1, "node-1", NodeDrained("node-2"))
    seen = iter([[], [drained]])
    monkeypatch.setattr(requests, "read_history", lambda client, flow: next(seen))
    monkeypatch.setattr(requests, "current_layout", lambda client, flow: None)
    told: list[str] = []
    client, done = cast(KazooClient, None), cast(Any, lambda layout: True)
    watch_layout(client, "flow", done, 30.0, told.append, "it")
    assert told == [text_of(drained.notice)]
