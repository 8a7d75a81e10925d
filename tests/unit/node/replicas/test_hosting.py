"""An ingress begins and ends off the loop: hosting waits for neither, and the next one waits for the one before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from unbroken.node.replicas.hosting import ReplicaHost
from unbroken.node.workers import Job
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.layout import INGRESS

REPLICA = ReplicaId(INGRESS, 0)


class SlowIngress:
    """Ends when the test says so."""

    def __init__(self) -> None:
        self.started = False
        self.then: Job | None = None

    def start(self) -> None:
        self.started = True

    def end(self, then: Job) -> None:
        self.then = then

    def close(self) -> None: ...


class SlowHost:
    def __init__(self) -> None:
        self.opened: list[SlowIngress] = []
        self.retired: list[ReplicaId] = []
        self.dirs = SimpleNamespace(retire=self.retired.append)

    def open_ingress(self, replica: ReplicaId) -> SlowIngress:
        self.opened.append(SlowIngress())
        return self.opened[-1]

    def dropped(self, replica: ReplicaId) -> None: ...


def host() -> tuple[ReplicaHost[Any], SlowHost]:
    made: Any = SlowHost()
    return ReplicaHost(made), made


def test_an_ingress_begins_when_the_one_before_it_has_ended() -> None:
    hosting, made = host()
    hosting.start(REPLICA)
    hosting.start(REPLICA)
    first, second = made.opened
    assert first.started and not second.started and hosting.ingress is second
    assert first.then is not None
    first.then()
    assert second.started


def test_a_directory_is_put_aside_when_the_ingress_has_ended() -> None:
    hosting, made = host()
    assert hosting.await_leave(REPLICA, 0)
    hosting.start(REPLICA)
    hosting.drop(REPLICA)
    [ended] = made.opened
    assert hosting.ingress is None and made.retired == [] and not hosting.await_leave(REPLICA, 0)
    assert ended.then is not None
    ended.then()
    assert made.retired == [REPLICA] and hosting.await_leave(REPLICA, 0)


def test_an_ingress_that_is_dropped_before_it_began_is_put_aside_in_order() -> None:
    hosting, made = host()
    hosting.start(REPLICA)
    hosting.start(REPLICA)
    hosting.drop(REPLICA)
    first, second = made.opened
    assert second.then is not None and made.retired == []
    assert first.then is not None
    first.then()
    assert second.started, "its worker drops what it was asked for, and does what follows its end"
    second.then()
    assert made.retired == [REPLICA]
