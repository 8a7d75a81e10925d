"""How threads other than the loop get to know the protocol object: they never read it themselves.

The loop publishes a view of the few facts that are needed all the time. Whatever else a thread wants to know, it has
the loop work out between two events, and gets a value that does not change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from unbroken.errors import UnbrokenError
from unbroken.protocol.events import Event
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.layout import Layout, Topology

T = TypeVar("T")

LOOK_S = 0.1
"""How often a thread that waits for an answer looks whether the node ends: the loop then answers no more."""


@dataclass(frozen=True)
class ProtocolView:
    """The documents by which a node goes, and whether it leads the ingress."""

    layout: Layout
    topology: Topology
    sync: InSync
    leading: bool

    @classmethod
    def of(cls, protocol: NodeProtocol, known: ProtocolView | None) -> ProtocolView:
        """The view of a protocol object: the one that is ``known``, unless something has changed. For the loop."""
        sources = protocol.sources
        leading = sources is not None and sources.log.leading
        if (
            known is not None
            and known.leading is leading
            and known.layout is protocol.layout
            and known.sync is protocol.sync
            and known.topology is protocol.topology
        ):
            return known
        return cls(protocol.layout, protocol.topology, protocol.sync, leading)


class Inquiry(Generic[T]):
    """A question to the protocol object that waits for the loop; its answer must not hold parts of the object."""

    def __init__(self, question: Callable[[NodeProtocol], T]) -> None:
        self._question = question
        self._answer: Future[T] = Future()

    def put_to(self, protocol: NodeProtocol) -> None:
        """Answer it. For the loop, which a question that fails must not end."""
        try:
            self._answer.set_result(self._question(protocol))
        except Exception as error:
            self._answer.set_exception(error)

    def wait(self, wait_s: float, stopping: threading.Event) -> T:
        """The answer; UnbrokenError if it does not come in time, or the node ends."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                return self._answer.result(max(0.0, min(left_s, LOOK_S)))
            except (FutureTimeoutError, TimeoutError):
                if self._answer.done():
                    raise
                if left_s <= 0 or stopping.is_set():
                    raise UnbrokenError("the loop of the node does not answer. Ask again later.") from None


QueueEntry = tuple[Event | Inquiry[Any], Any]
"""An entry of the node's queue: an event with its rows, or an inquiry."""
