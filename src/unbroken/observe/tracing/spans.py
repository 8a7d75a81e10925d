"""What traces are made of: what a node has seen, the spans that follow from it, and tables with a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from unbroken.errors import require
from unbroken.observe.tracing.ids import SpanPlace
from unbroken.protocol.events import Event
from unbroken.protocol.instructions import Instruction

AttributeValue = str | bool | int | float | tuple[str, ...]
SpanKind = Literal["internal", "producer", "consumer", "client"]

PENDING_LIMIT = 4_096
"""Things that have begun and not ended, of each kind. A flow has a few in flight for each replica; what never ends,
because its end was not noted, must not be kept for ever."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One turn of a node's loop: the event, and the instructions that were carried out by ``ended_ns``.

    ``leading`` says whether the node led the ingress. ``incarnation`` names the process of the node that the event is
    about, if it is about one.
    """

    began_ns: int
    ended_ns: int
    event: Event
    steps: tuple[Instruction, ...] = ()
    leading: bool = False
    incarnation: str = ""


@dataclass(frozen=True)
class Moment:
    """Something that happened during a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """A stretch of time on one node, as a trace shows it; ``failure`` says why it did not come to a good end."""

    name: str
    place: SpanPlace
    parent: SpanPlace | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    links: tuple[SpanPlace, ...] = ()
    kind: SpanKind = "internal"
    failure: str = ""

    def __post_init__(self) -> None:
        require(self.parent is None or self.parent.trace == self.place.trace, f"{self.name}: a parent elsewhere")
        require(self.start_ns <= self.end_ns, f"{self.name} ends before it begins")


Key = TypeVar("Key")
Item = TypeVar("Item")


class Recent(OrderedDict[Key, Item], Generic[Key, Item]):
    """A table that forgets the oldest entry when it has too many."""

    def __init__(self, limit: int = PENDING_LIMIT) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: Key, item: Item) -> None:
        super().__setitem__(key, item)
        if len(self) > self._limit:
            self.popitem(last=False)
