"""How a node finds out that its Spark is gone, however it was started."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from unbroken.protocol.values.notices.processes import SparkEnd
from unbroken.spark.life import Changes, Ending, SparkLife


class Java:
    """The JVM's side of a session: its executors, and whether it has stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self.ids = "0,1"

    def sc(self) -> Java:
        return self

    def isStopped(self) -> bool:
        return self.stopped

    def getExecutorIds(self) -> Any:
        return SimpleNamespace(mkString=lambda _: self.ids)


class Unreachable(Java):
    def isStopped(self) -> bool:
        raise ConnectionRefusedError


def session(java: Java, process: Any, master: str = "local[2]") -> Any:
    gateway = SimpleNamespace(proc=process)
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _gateway=gateway, _jsc=java))


def child(code: int | None) -> Any:
    return SimpleNamespace(poll=lambda: code)


def test_a_jvm_that_runs_is_well() -> None:
    assert SparkLife(session(Java(), child(None))).end() is None


def test_the_end_of_a_child_is_seen() -> None:
    assert SparkLife(session(Unreachable(), child(137))).end() == Ending(SparkEnd.JVM_ENDED, 137)


def test_the_end_of_a_parent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    life = SparkLife(session(Unreachable(), None))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert life.end() == Ending(SparkEnd.SUBMIT_ENDED)


def test_a_jvm_that_went_unseen_cannot_be_reached() -> None:
    assert SparkLife(session(Unreachable(), None)).end() == Ending(
        SparkEnd.UNREACHABLE, detail="ConnectionRefusedError"
    )


def test_a_master_may_end_the_application() -> None:
    java = Java()
    life = SparkLife(session(java, child(None), "spark://10.0.0.5:7077"))
    assert life.end() is None
    java.stopped = True
    assert life.end() == Ending(SparkEnd.STOPPED)


def test_changes_are_told_once() -> None:
    java = Java()
    life = SparkLife(session(java, child(None), "spark://10.0.0.5:7077"))
    assert life.changes() == ((), (), 2)
    java.ids = "1"
    assert life.changes() == (("0",), (), 1)
    assert life.changes() == ((), (), 1)
    java.ids = "1,2"
    assert life.changes() == ((), ("2",), 2)


def test_a_local_node_has_no_executors_to_lose() -> None:
    java = Java()
    life = SparkLife(session(java, child(None)))
    java.ids = ""
    assert life.changes() == ((), (), 0)


def test_lost_and_added_executors() -> None:
    assert Changes.between({"0"}, {"0"}) == ((), (), 1)
    assert Changes.between({"0"}, ()) == (("0",), (), 0)
    assert Changes.between({"0", "1", "2", "3"}, {"2", "3"}) == (("0", "1"), (), 2)
    assert Changes.between({"0", "1"}, {"2"}) == (("0", "1"), ("2",), 1)
