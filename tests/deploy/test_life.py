"""How a node finds out that its Spark is gone, however it was started."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from unbroken.spark.life import SparkLife, describe


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
    assert SparkLife(session(Unreachable(), child(137))).end() == "the JVM of Spark has ended with code 137"


def test_the_end_of_a_parent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    life = SparkLife(session(Unreachable(), None))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert life.end() == "the JVM of spark-submit has ended"


def test_a_jvm_that_went_unseen_cannot_be_reached() -> None:
    assert SparkLife(session(Unreachable(), None)).end() == (
        "the JVM of Spark cannot be reached (ConnectionRefusedError)"
    )


def test_a_master_may_end_the_application() -> None:
    java = Java()
    life = SparkLife(session(java, child(None), "spark://10.0.0.5:7077"))
    assert life.end() is None
    java.stopped = True
    assert life.end() == "Spark has stopped"


def test_changes_are_told_once() -> None:
    java = Java()
    life = SparkLife(session(java, child(None), "spark://10.0.0.5:7077"))
    assert life.changes() == []
    java.ids = "1"
    assert life.changes() == ["has lost executor 0 of Spark; its tasks are run again on the one that is left"]
    assert life.changes() == []
    java.ids = "1,2"
    assert life.changes() == ["has got executor 2 of Spark"]


def test_a_local_node_has_no_executors_to_lose() -> None:
    java = Java()
    life = SparkLife(session(java, child(None)))
    java.ids = ""
    assert life.changes() == []


def test_lost_and_gained_executors_in_words() -> None:
    assert describe({"0"}, {"0"}) == []
    assert describe({"0"}, ()) == ["has lost executor 0 of Spark; it has none, and waits for another one"]
    assert describe({"0", "1", "2", "3"}, {"2", "3"})[0].endswith("again on the 2 that are left")
    assert describe({"0", "1"}, {"2"})[1] == "has got executor 2 of Spark"
