"""Faults as they are done: each to the processes and links it is about, and undone when its time is over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.layout import Topology
from unbroken.testing.deployment import Deployment
from unbroken.testing.faults import ZOOKEEPER, Fault, Freeze, Kill, Partition, SourceFails
from unbroken.testing.files import RunFiles
from unbroken.testing.result import Struck
from unbroken.testing.script import Plan
from unbroken.testing.shortage import shortage_of

ZOOKEEPER_BACK_S = 1.0
"""How long ZooKeeper stays away if a test does not say so."""

Undo = Callable[[], bool | None]
"""Ends a fault that lasts; False if that is not possible yet."""


@dataclass
class _Lasting:
    """A fault that lasts until ``until``."""

    until: float
    undo: Undo
    what: str


@dataclass
class Striker:
    """Does what a plan says, whenever it is looked at (`look`): what sources wait for, and what the time has come for.

    ``began`` is when the first result came, from which on ``after_s`` counts.
    """

    plan: Plan
    deployment: Deployment
    files: RunFiles
    topology: Topology
    began: float | None = None
    struck: list[Struck] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _waiting: dict[str, list[Fault]] = field(default_factory=dict)
    _timed: list[Fault] = field(default_factory=list)
    _lasting: list[_Lasting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._timed = list(self.plan.timed)

    def look(self) -> None:
        """Do what there is to be done at this moment."""
        self._end_what_is_over(time.monotonic())
        for hold in sorted(self.files.reached()):
            if hold in self.plan.strikes and hold not in self._ended:
                self.marks.setdefault(hold, time.time())
                self._at_hold(hold)
        if self.began is not None:
            since = time.monotonic() - self.began
            for fault in [each for each in self._timed if (each.after_s or 0.0) <= since and self._may(each)]:
                self._timed.remove(fault)
                self._strike(fault)

    def pending(self) -> list[Fault]:
        """The faults that have not happened."""
        ahead = [faults for hold, faults in self.plan.strikes.items() if hold not in self._ended | set(self._waiting)]
        return [*(fault for faults in [*ahead, *self._waiting.values()] for fault in faults), *self._timed]

    def settle(self) -> None:
        """End everything that lasts, at once, as far as it can be ended; sources go on."""
        for lasting in self._lasting:
            with contextlib.suppress(UnbrokenError):
                lasting.undo()
        self._lasting.clear()
        for hold in self.plan.strikes:
            self.files.end_hold(hold)

    def _at_hold(self, hold: str) -> None:
        """Strike while the source waits; it goes on when everything has happened that is to happen there."""
        left = self._waiting.setdefault(hold, list(self.plan.strikes[hold]))
        while left and self._may(left[0]):
            self._strike(left.pop(0))
        if not left:
            del self._waiting[hold]
            self._ended.add(hold)
            self.files.end_hold(hold)

    def _may(self, fault: Fault) -> bool:
        return not fault.when_whole or self._shortage() is None

    def _shortage(self) -> str | None:
        """Why the flow is not whole; a node that is gone has to be missed before the layout says anything about it."""
        directory = self.deployment.reader.directory
        if not directory.refresh() or directory.layout is None:
            return "ZooKeeper does not answer"
        members, layout = directory.members, directory.layout
        gone = self.deployment.killed & set(members)
        if gone:
            return f"{', '.join(sorted(gone))} has yet to be missed"
        return shortage_of(layout, members, self.topology)

    def _strike(self, fault: Fault) -> None:
        at_s = time.time()
        try:
            what = self._do(fault)
        except UnbrokenError as error:
            raise UnbrokenError(f"{fault} could not be done: {error}") from error
        self.struck.append(Struck(fault, what, at_s))

    def _do(self, fault: Fault) -> str:
        match fault:
            case Kill(node=node) if node == ZOOKEEPER:
                return self._kill_zookeeper(fault.back_after_s)
            case Kill():
                return self._kill(fault)
            case Freeze(node=node) if node == ZOOKEEPER:
                return self._freeze_zookeeper(fault.for_s)
            case Freeze():
                name = self.deployment.roles().find(fault.node)
                process = self.deployment.members[name].process
                process.freeze()
                self._lasts(fault.for_s, process.thaw, f"{name} goes on")
                return f"{name} is frozen for {fault.for_s:g} s"
            case Partition():
                return self._cut(fault)
            case SourceFails():
                self.files.let_fail(fault.name, True)
                self._lasts(fault.for_s, lambda: self.files.let_fail(fault.name, False), "it is back")
                return f"source {fault.name} fails for {fault.for_s:g} s"
        raise UnbrokenError(f"nobody knows how to do {fault}")

    def _kill(self, fault: Kill) -> str:
        deployment = self.deployment
        name = deployment.roles().find(fault.node)
        if name in deployment.killed:
            raise UnbrokenError(f"{name} is dead already")
        what = deployment.kill(name)
        if fault.back_after_s is None:
            return what
        deployment.expect_back()
        self._lasts(fault.back_after_s, lambda: deployment.start_again(name), f"return of {name}")
        return f"{what}, back after {fault.back_after_s:g} s"

    def _kill_zookeeper(self, back_after_s: float | None) -> str:
        away_s = back_after_s or ZOOKEEPER_BACK_S
        what = self.deployment.kill_zookeeper()
        self._lasts(away_s, self.deployment.restart_zookeeper, "return of ZooKeeper")
        return f"{what}, back after {away_s:g} s"

    def _freeze_zookeeper(self, for_s: float) -> str:
        pid = self.deployment.zookeeper_pid
        if pid is None:
            raise UnbrokenError("ZooKeeper is dead")
        process = psutil.Process(pid)
        process.suspend()
        self._lasts(for_s, process.resume, "ZooKeeper goes on")
        return f"ZooKeeper is frozen for {for_s:g} s"

    def _cut(self, fault: Partition) -> str:
        links, roles = self.deployment.links, self.deployment.roles()
        assert links is not None, "a plan with a partition is deployed behind proxies"
        a = ZOOKEEPER if fault.a == ZOOKEEPER else roles.find(fault.a)
        if fault.b is None:
            others = [name for name in (*self.deployment.names, ZOOKEEPER) if name != a]
        else:
            others = [ZOOKEEPER if fault.b == ZOOKEEPER else roles.find(fault.b)]
        if a in others:
            raise UnbrokenError(f"both ends of it are {a} at this moment")
        for other in others:
            links.cut(a, other)

        def heal() -> None:
            for other in others:
                links.heal(a, other)

        self._lasts(fault.for_s, heal, f"{a} is linked again")
        return f"{a} is cut from {', '.join(others)} for {fault.for_s:g} s"

    def _lasts(self, seconds: float, undo: Undo, what: str) -> None:
        self._lasting.append(_Lasting(time.monotonic() + seconds, undo, what))

    def _end_what_is_over(self, now: float) -> None:
        for lasting in [each for each in self._lasting if each.until <= now]:
            if lasting.undo() is not False:
                self._lasting.remove(lasting)
                self.told.append(lasting.what)
