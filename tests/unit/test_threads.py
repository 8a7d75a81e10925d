"""A thread that a node needs and that fails is made known, whatever it raises."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import unbroken
from unbroken.threads import LastingThread, failure_hook


class PanicException(BaseException):
    pass


class Wild(BaseException):
    def __str__(self) -> str:
        raise SystemExit


def run(thread: threading.Thread, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(threading, "excepthook", failure_hook(lambda name, reason: found.append((name, reason))))
    thread.start()
    thread.join(20)
    return found


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "ValueError: no"),
        (SystemExit(3), "SystemExit: 3"),
        (PanicException("index out of bounds"), "PanicException: index out of bounds"),
        (Wild(), "Wild"),
    ],
)
def test_a_lasting_thread_that_fails_is_made_known(
    error: BaseException, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(LastingThread(raising(error), "worker"), monkeypatch) == [("worker", reason)]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)], ids=repr)
def test_other_threads_are_only_logged(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(threading.Thread(target=raising(error), name="short"), monkeypatch) == []
    assert ("thread short failed" in caplog.text) == isinstance(error, ValueError)


def test_a_lasting_thread_that_is_done_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(LastingThread(lambda: None, "worker"), monkeypatch) == []


SHORT = {
    *(
        "node/replicas/state_pins.py",
        "node/replicas/state_copies.py",
        "node/replicas/warmup.py",
        "node/replicas/spark_engine.py",
        "node/policies/leader/kafka.py",
    ),
    *(
        "connectors/kafka/lookout.py",
        "observe/metrics/server.py",
        "transport/state/donor_calls.py",
        "transport/link.py",
    ),
    *("transport/server.py", "observe/tracing/tracing.py", "node/journal.py"),
}
"""Modules of a node with threads whose end is noticed: they answer one question or do one job, and report how that
ended, or the node does without them, as without traces."""


def test_threads_of_a_node_are_lasting_or_known_to_be_short() -> None:
    """A new worker thread has to be one or the other on purpose."""
    root = Path(unbroken.__file__).parent
    plain = set()
    for package in ("connectors", "coordination", "node", "observe", "transport"):
        for path in (root / package).rglob("*.py"):
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Attribute) and call.attr == "Thread" for call in calls):
                plain.add(path.relative_to(root).as_posix())
    assert plain == SHORT
