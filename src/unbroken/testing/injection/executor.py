"""Does faults to real processes, disks, clocks and links, and ends those that last when their time is over."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import psutil

from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId
from unbroken.testing.faults import (
    EVERYTHING,
    LEADER,
    REPLICA_OF,
    ZOOKEEPER,
    ClockStep,
    DiskFull,
    Fault,
    Freeze,
    Kill,
    NodeRef,
    Partition,
    Restart,
    SlowDisk,
    SourceFails,
    Wipe,
)
from unbroken.testing.injection.condition_files import Conditions
from unbroken.testing.injection.ground import Ground, TargetProcess
from unbroken.testing.targets import Roles, node_name

ZOOKEEPER_BACK_S = 1.0
"""How long ZooKeeper is down if a fault does not specify it."""

GONE_S = 30.0
"""How long the descendants of a killed node may take to disappear before its disk is touched."""

GONE_LOOK_S = 0.02
STOP_S = 20.0
"""How long a node may take to end when it is asked to; then it is killed."""

LAUNCHER = "org.apache.spark.launcher.Main"
"""A JVM that lives for a second and only makes the command line of the one that matters."""

FaultEnd = Callable[[], bool | None]
"""Ends a fault that lasts; False if that is not possible yet."""


@dataclass(frozen=True)
class Impact:
    """What was done to which nodes. A fault that found nothing to hit was not ``done``, for the reason in ``what``."""

    what: str
    nodes: tuple[NodeId, ...] = ()
    done: bool = True


@dataclass(frozen=True)
class Struck:
    """A fault that happened: to whom, and when in seconds since 1970."""

    fault: Fault
    what: str
    at_s: float
    nodes: tuple[NodeId, ...] = ()
    done: bool = True

    @property
    def at_ms(self) -> float:
        return self.at_s * 1000

    def __str__(self) -> str:
        return f"{self.fault}: {self.what}"


@dataclass(frozen=True)
class Lasting:
    """A fault that lasts until ``until``, by the monotonic clock."""

    fault: Fault
    until: float
    undo: FaultEnd
    what: str


class Executor:
    """Does faults on one ground; ``roles`` tells which node does what at a moment.

    Not safe for several threads: whoever uses it from several has a lock.

    Invariant: everything that was changed is in ``lasting`` until it is changed back, or is changed for good.
    """

    def __init__(self, ground: Ground, roles: Callable[[], Roles]) -> None:
        self._ground = ground
        self._roles = roles
        self.lasting: list[Lasting] = []

    def strike(self, fault: Fault) -> Struck:
        """Do a fault now, whatever moment it names; UnbrokenError if this ground cannot do it."""
        at_s = time.time()
        try:
            effect = self._do(fault)
        except UnbrokenError as error:
            raise UnbrokenError(f"{fault} could not be done: {error}") from error
        return Struck(fault, effect.what, at_s, effect.nodes, effect.done)

    def end_due(self) -> list[Lasting]:
        """End the faults whose time is over; those that have ended."""
        now = time.monotonic()
        ended = [each for each in self.lasting if each.until <= now and each.undo() is not False]
        self.lasting = [each for each in self.lasting if each not in ended]
        return ended

    def end(self, struck: Struck) -> bool:
        """End a fault before its time; False if that is not possible yet."""
        mine = [each for each in self.lasting if each.fault is struck.fault]
        ended = [each for each in mine if each.undo() is not False]
        self.lasting = [each for each in self.lasting if each not in ended]
        return len(ended) == len(mine)

    def settle(self) -> None:
        """End everything that lasts, at once, as far as it can be ended."""
        for each in self.lasting:
            with contextlib.suppress(UnbrokenError, psutil.Error, OSError):
                each.undo()
        self.lasting.clear()

    def left_s(self) -> float:
        """How long the longest of them still lasts."""
        return max((each.until - time.monotonic() for each in self.lasting), default=0.0)

    def find(self, node: NodeRef) -> NodeId:
        """The node that a fault means; who has a role is asked only where one is named."""
        name = node_name(node)
        if name == LEADER or name.startswith(REPLICA_OF):
            name = self._roles().find(node)
        if name not in self._ground.names:
            raise UnbrokenError(f"there is no node {name}")
        return name

    # --- each kind ------------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> Impact:
        match fault:
            case Kill(node=node) if node == ZOOKEEPER:
                return self._kill_zookeeper(fault)
            case Kill():
                return self._kill_jvm(fault) if fault.jvm else self._kill(fault)
            case Freeze(node=node) if node == ZOOKEEPER:
                return self._freeze_zookeeper(fault)
            case Freeze():
                return self._freeze_jvm(fault) if fault.jvm else self._freeze(fault)
            case Restart(node=node) if node == EVERYTHING:
                return self._restart_everything()
            case Restart():
                return self._restart(fault)
            case Wipe():
                return self._wipe(fault)
            case Partition():
                return self._cut(fault)
            case DiskFull():
                return self._fill(fault)
            case SlowDisk():
                return self._slow_down(fault)
            case ClockStep():
                return self._set_clock(fault)
            case SourceFails():
                ground, name = self._ground, fault.name
                ground.let_source_fail(name, True)
                self._lasts(fault, fault.for_s, lambda: ground.let_source_fail(name, False), f"{name} can be read")
                return Impact(f"source {name} fails for {fault.for_s:g} s")
        raise UnbrokenError("no executor knows this fault")

    def _kill(self, fault: Kill) -> Impact:
        name, process = self._process(fault.node)
        if not process.alive():
            return Impact(f"{name} is dead already", (name,), done=False)
        self._ground.killed(name, comes_back=fault.back_after_s is not None)
        process.kill9()
        what = f"kill -9 of {name} (process {process.pid})"
        if fault.back_after_s is None:
            return Impact(what, (name,))
        self._lasts(fault, fault.back_after_s, lambda: self._come_back(name, process), f"{name} is restarted")
        return Impact(f"{what}, back after {fault.back_after_s:g} s", (name,))

    def _come_back(self, name: NodeId, process: TargetProcess) -> bool:
        # Two processes on one disk would be another fault.
        return process.wait(0.0) is not None and self._ground.start_again(name)

    def _kill_jvm(self, fault: Kill) -> Impact:
        name, process = self._process(fault.node)
        jvm = jvm_of(process)
        if jvm is None:
            return Impact(f"{name} has no JVM", (name,), done=False)
        with contextlib.suppress(psutil.NoSuchProcess):
            jvm.kill()
        return Impact(f"kill -9 of the JVM of {name} (process {jvm.pid})", (name,))

    def _kill_zookeeper(self, fault: Kill) -> Impact:
        server = self._ground.zookeeper_server
        if not server.alive():
            return Impact("ZooKeeper is dead already", done=False)
        away_s = fault.back_after_s or ZOOKEEPER_BACK_S
        server.kill9()
        self._lasts(fault, away_s, self._ground.restart_zookeeper, "ZooKeeper is restarted")
        return Impact(f"kill -9 of ZooKeeper, back after {away_s:g} s")

    def _freeze(self, fault: Freeze) -> Impact:
        name, process = self._process(fault.node)
        if not process.alive():
            return Impact(f"{name} is dead", (name,), done=False)
        process.freeze()
        self._lasts(fault, fault.for_s, process.thaw, f"{name} resumes")
        return Impact(f"{name} is frozen (process {process.pid}) for {fault.for_s:g} s", (name,))

    def _freeze_jvm(self, fault: Freeze) -> Impact:
        name, process = self._process(fault.node)
        return self._suspend(fault, jvm_of(process), f"the JVM of {name}", (name,))

    def _freeze_zookeeper(self, fault: Freeze) -> Impact:
        pid, process = self._ground.zookeeper_server.pid, None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = None if pid is None else psutil.Process(pid)
        return self._suspend(fault, process, "ZooKeeper", ())

    def _suspend(self, fault: Freeze, process: psutil.Process | None, what: str, nodes: tuple[NodeId, ...]) -> Impact:
        """Stop one process. Its start time is remembered, so that thawing never hits another one with its number."""

        if process is None:
            return Impact(f"{what} does not run", nodes, done=False)

        def thaw() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

        try:
            process.suspend()
        except psutil.NoSuchProcess:
            return Impact(f"{what} does not run", nodes, done=False)
        self._lasts(fault, fault.for_s, thaw, f"{what} resumes")
        return Impact(f"{what} is frozen (process {process.pid}) for {fault.for_s:g} s", nodes)

    def _restart(self, fault: Restart) -> Impact:
        name, process = self._process(fault.node)
        self._ground.killed(name, comes_back=True)
        process.stop(STOP_S)
        if not self._ground.start_again(name):
            self._lasts(fault, 0.0, lambda: self._ground.start_again(name), f"{name} is restarted")
        return Impact(f"{name} was stopped and restarted", (name,))

    def _restart_everything(self) -> Impact:
        ground = self._ground
        for name in ground.names:
            ground.process_of(name).kill9()
        ground.zookeeper_server.kill9()
        end = time.monotonic() + GONE_S
        while ground.zookeeper_server.alive() or any(ground.process_of(name).alive() for name in ground.names):
            if time.monotonic() > end:
                raise UnbrokenError(f"processes were killed and did not end within {GONE_S:g} s")
            time.sleep(GONE_LOOK_S)
        # What was frozen is dead, and links are made anew.
        self.settle()
        ground.restart_everything()
        return Impact("kill -9 of all nodes and ZooKeeper, and all restarted", tuple(ground.names))

    def _wipe(self, fault: Wipe) -> Impact:
        name, process = self._process(fault.node)
        self._ground.killed(name, comes_back=True)
        process.kill9()
        if process.wait(GONE_S) is None:
            raise UnbrokenError(f"{name} (process {process.pid}) was killed and did not end within {GONE_S:g} s")
        # What is in the directory, not the directory itself: it may be a disk of its own.
        for path in self._ground.directory_of(name).iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not self._ground.start_again(name):
            self._lasts(fault, 0.0, lambda: self._ground.start_again(name), f"{name} is restarted")
        return Impact(f"kill -9 of {name}, its disk lost", (name,))

    def _cut(self, fault: Partition) -> Impact:
        links = self._ground.links
        if links is None:
            raise UnbrokenError("these nodes are not linked by ways that can be cut; start them so")
        a = self._place(fault.a)
        others = [name for name in links.members if name != a]
        if fault.b is not None:
            others = [self._place(fault.b)]
        if a in others:
            raise UnbrokenError(f"both ends of it are {a} at this moment")
        for other in others:
            links.cut(a, other)

        def heal() -> None:
            for other in others:
                links.heal(a, other)

        self._lasts(fault, fault.for_s, heal, f"{a} is linked again")
        nodes = tuple(name for name in (a, *others) if name in self._ground.names)
        return Impact(f"{a} is cut from {', '.join(others)} for {fault.for_s:g} s", nodes)

    def _place(self, node: NodeRef) -> str:
        return ZOOKEEPER if node == ZOOKEEPER else self.find(node)

    def _fill(self, fault: DiskFull) -> Impact:
        name = self.find(fault.node)
        disk = self._ground.disk_of(name)
        if disk is None:
            raise UnbrokenError(f"{name} has no disk of its own; start it on a small one")
        if disk.full:
            return Impact(f"the disk of {name} is full already", (name,), done=False)
        # A node may end of it, which is no failure of the run.
        self._ground.killed(name, comes_back=False)
        disk.fill()

        def free() -> bool:
            disk.free()
            return self._ground.revive(name)

        self._lasts(fault, fault.for_s, free, f"the disk of {name} has space")
        return Impact(f"the disk of {name} is full for {fault.for_s:g} s", (name,))

    def _slow_down(self, fault: SlowDisk) -> Impact:
        name = self.find(fault.node)
        self._impose(name, force_ms=fault.delay_ms)
        self._lasts(fault, fault.for_s, lambda: self._impose(name, force_ms=0.0), f"the disk of {name} is quick")
        return Impact(f"the disk of {name} is {fault.delay_ms:g} ms slower for {fault.for_s:g} s", (name,))

    def _set_clock(self, fault: ClockStep) -> Impact:
        name = self.find(fault.node)
        self._impose(name, clock_s=fault.by_s)
        if fault.for_s is not None:
            self._lasts(fault, fault.for_s, lambda: self._impose(name, clock_s=0.0), f"the clock of {name} is right")
        return Impact(f"the clock of {name} is set by {fault.by_s:+g} s", (name,))

    def _impose(self, name: NodeId, **changed: float) -> None:
        file = self._ground.conditions_of(name)
        if file is None:
            raise UnbrokenError(f"{name} was not started with conditions that can be changed; start it so")
        wanted: Conditions = replace(file.read(), **changed)
        if not file.impose(wanted, self._ground.process_of(name).alive):
            raise UnbrokenError(f"{name} did not take over {wanted}; its process may be dead or frozen")

    def _process(self, node: NodeRef) -> tuple[NodeId, TargetProcess]:
        name = self.find(node)
        return name, self._ground.process_of(name)

    def _lasts(self, fault: Fault, seconds: float, undo: FaultEnd, what: str) -> None:
        self.lasting.append(Lasting(fault, time.monotonic() + seconds, undo, what))


def jvm_of(process: TargetProcess) -> psutil.Process | None:
    """The JVM of a node's Spark; None while the node has none."""
    try:
        descendants = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    for each in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name() == "java" and LAUNCHER not in each.cmdline():
                return each
    return None
