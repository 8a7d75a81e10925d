"""What the ingress of a node needs of the node, of its disk and of its clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from unbroken.coordination.documents import Member
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.feeder import Feeder
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.inquiries import ProtocolView
from unbroken.node.workers import Worker
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Notice


def steady_s() -> float:
    """A clock that is never set. Where the system has one, it also counts the time that a machine was asleep."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


@dataclass(frozen=True)
class IngressClocks:
    """``wall_s`` is the time of day, ``steady_s`` is never set, and ``awake_s`` stops while the machine is asleep."""

    wall_s: Callable[[], float] = time.time
    steady_s: Callable[[], float] = steady_s
    awake_s: Callable[[], float] = time.monotonic


class IngressNode(Protocol):
    """The node of an ingress. All of it may be used by any thread."""

    @property
    def name(self) -> NodeId: ...

    @property
    def view(self) -> ProtocolView | None:
        """The documents by which the node goes; None before it has its place."""

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """The nodes that are present, and where they take pushed rows."""

    def post(self, event: Event) -> None:
        """Give the loop an event."""

    def tell(self, notice: Notice) -> None: ...

    def fail(self, notice: Notice) -> None:
        """Something that the whole node depends on is gone: the node ends."""

    def cannot_keep(self, error: OSError) -> None:
        """The disk does not take what the ingress has to keep: the node ends."""


@dataclass(frozen=True)
class IngressGround:
    """What an ingress stands on.

    ``open_log`` and ``open_feeder`` are called on the worker ``jobs``, which reads the sources and writes their units;
    the log is written on the worker ``disk``, and ``forced`` if an entry is to survive a power failure. ``tidy``
    removes dead letters that have become too old.
    """

    open_log: Callable[[], IngressLogFile]
    open_feeder: Callable[[IngressBase, Iterable[Entry]], Feeder]
    tidy: Callable[[], None]
    forced: bool
    jobs: Worker
    disk: Worker
    clocks: IngressClocks = IngressClocks()
