"""Guards over the loops of nodes: what other threads read of their protocol objects, and which files they write.

Every attribute of a protocol object that a thread other than its loop's reads is noted, and every file that a loop
opens for writing while it carries instructions out: a disk that is slow would hold it up.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import ModuleType
from typing import Any

from unbroken.node.loop import Loop
from unbroken.protocol import machine
from unbroken.protocol.machine import NodeProtocol

ATTRIBUTE = "__getattribute__"

SHARED = ("unbroken.protocol.effects",)
"""Modules whose objects belong to the shell of a node."""


def changing(kind: type[Any]) -> bool:
    """Whether objects of a class of the protocol can change; frozen values may be read by every thread."""
    if not kind.__module__.startswith("unbroken.protocol") or kind.__module__ in SHARED:
        return False
    if issubclass(kind, Enum | BaseException | tuple) or getattr(kind, "_is_protocol", False):
        return False
    frozen = getattr(kind, "__dataclass_params__", None)
    return not (frozen is not None and frozen.frozen)


def kinds() -> set[type[Any]]:
    """All classes of the protocol whose objects can change."""
    found: set[type[Any]] = set()
    for name, module in list(sys.modules.items()):
        if name.startswith("unbroken.protocol") and isinstance(module, ModuleType):
            found |= {one for one in vars(module).values() if isinstance(one, type) and changing(one)}
    return found


def parts(protocol: NodeProtocol) -> Iterator[object]:
    """A protocol object and all objects below it that can change."""
    seen: set[int] = set()
    open_ends: list[Any] = [protocol]
    while open_ends:
        one = open_ends.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            open_ends += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            open_ends += list(one)
        elif changing(type(one)):
            yield one
            open_ends += list(vars(one).values()) if hasattr(one, "__dict__") else []
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            open_ends += [getattr(one, field.name) for field in dataclasses.fields(one)]


class LoopGuard:
    """Notes reads of protocol objects by other threads than the one that last handled an event of theirs."""

    def __init__(self) -> None:
        self.reads: dict[tuple[str, str], str] = {}
        self.guarded = 0
        self._owners: dict[int, tuple[object, int]] = {}
        self._inside = threading.local()

    def own(self, protocol: NodeProtocol) -> None:
        """All parts of a protocol object belong to the calling thread."""
        self._inside.free = True
        try:
            thread = threading.get_ident()
            for part in parts(protocol):
                self._owners[id(part)] = (part, thread)
            self.guarded = max(self.guarded, len(self._owners))
        finally:
            self._inside.free = False

    def enter(self, protocol: NodeProtocol) -> None:
        """The calling thread is the loop of a protocol object; it may have begun on another one."""
        known = self._owners.get(id(protocol))
        if known is None or known[1] != threading.get_ident():
            self.own(protocol)

    def read(self, one: object, name: str) -> None:
        known = self._owners.get(id(one))
        if known is None or known[1] == threading.get_ident() or getattr(self._inside, "free", False):
            return
        if name.startswith("__"):
            return
        where = "".join(traceback.format_stack(limit=6)[:-2])
        self.reads.setdefault((type(one).__name__, name), f"{threading.current_thread().name}:\n{where}")


@contextmanager
def guarded() -> Iterator[LoopGuard]:
    """Guard the protocol objects of all loops of this process."""
    guard, decide, wait_ms = LoopGuard(), Loop.decide, Loop.wait_ms
    assert machine.NodeProtocol in kinds()
    before = {kind: kind.__dict__.get(ATTRIBUTE) for kind in kinds()}

    def guarded_decide(self: Loop[Any], event: Any) -> Any:
        guard.enter(self.protocol)
        steps = decide(self, event)
        guard.own(self.protocol)
        return steps

    def guarded_wait_ms(self: Loop[Any], most_ms: float) -> float:
        guard.enter(self.protocol)
        return wait_ms(self, most_ms)

    def watching(self: object, name: str) -> Any:
        guard.read(self, name)
        return object.__getattribute__(self, name)

    for kind in before:
        setattr(kind, ATTRIBUTE, watching)
    Loop.decide = guarded_decide  # type: ignore[method-assign]
    Loop.wait_ms = guarded_wait_ms  # type: ignore[method-assign]
    try:
        yield guard
    finally:
        Loop.decide, Loop.wait_ms = decide, wait_ms  # type: ignore[method-assign]
        for kind, own in before.items():
            if own is None:
                delattr(kind, ATTRIBUTE)
            else:
                setattr(kind, ATTRIBUTE, own)


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class WriteGuard:
    """Notes files that are opened for writing by a thread while it carries out instructions of a protocol."""

    def __init__(self) -> None:
        self.writes: dict[str, str] = {}
        self._inside = threading.local()

    @contextmanager
    def carrying_out(self) -> Iterator[None]:
        """The calling thread carries instructions out."""
        before, self._inside.loop = getattr(self._inside, "loop", False), True
        try:
            yield
        finally:
            self._inside.loop = before

    def note(self, path: object, flags: int) -> None:
        if flags & WRITING and getattr(self._inside, "loop", False):
            where = "".join(traceback.format_stack(limit=8)[:-2])
            self.writes.setdefault(str(path), f"{threading.current_thread().name}:\n{where}")


_write_guards: list[WriteGuard] = []


def _audit(kind: str, arguments: tuple[Any, ...]) -> None:
    if _write_guards and kind == "open":
        for guard in _write_guards:
            guard.note(arguments[0], arguments[2])


sys.addaudithook(_audit)


@contextmanager
def watched_writes() -> Iterator[WriteGuard]:
    """Watch the files that the loops of this process write."""
    guard, carry_out = WriteGuard(), Loop.carry_out

    def watched(self: Loop[Any], steps: Any, rows: Any) -> None:
        with guard.carrying_out():
            carry_out(self, steps, rows)

    Loop.carry_out = watched  # type: ignore[method-assign]
    _write_guards.append(guard)
    try:
        yield guard
    finally:
        _write_guards.remove(guard)
        Loop.carry_out = carry_out  # type: ignore[method-assign]
