"""What several parts of a node need of it. A part that needs less takes a function, or an interface of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from unbroken.node.inquiries import ProtocolView
from unbroken.protocol.events import Event
from unbroken.protocol.machine import NodeProtocol
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Notice

T = TypeVar("T")


class LoopAccess(Protocol):
    """How threads reach the loop of their node; all of it may be called from any thread."""

    @property
    def view(self) -> ProtocolView | None:
        """The documents by which the node goes; None before it has its place."""

    def post(self, event: Event) -> None:
        """Give the loop an event."""

    def inquire(self, question: Callable[[NodeProtocol], T]) -> T | None:
        """Have the loop work something out of the protocol object; None before there is one.

        UnbrokenError if the answer does not come in time, or the node ends.
        """


class NodeLife(Protocol):
    """The life of a node, as its threads know it, and what they report of it."""

    @property
    def name(self) -> NodeId: ...

    @property
    def stopping(self) -> bool: ...

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait until the node is to stop; False if it is not to in time."""

    def tell(self, notice: Notice) -> None:
        """Log a notice, show it in the status, and put it into the flow's history."""

    def fail(self, notice: Notice) -> None:
        """Report that something the whole node depends on is gone, and end the node."""
