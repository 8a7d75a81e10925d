"""What a notice is: an event worth reporting to a person, as data.

Protocol and node make notices, everything else reads their fields. ``unbroken.observe.notices`` words them in
English.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId


class Severity(StrEnum):
    """How much a notice asks of an operator."""

    INFO = "info"
    """Nothing."""
    WARNING = "warning"
    """Nothing now: the flow deals with it, but redundancy, time or rows that are set aside may be the price."""
    ERROR = "error"
    """Something has failed for good, is lost, or waits for an operator."""


class Effect(StrEnum):
    """What a notice means for the flow."""

    LOSS = "loss"
    """Something no longer works, or is lost."""
    DOUBT = "doubt"
    """Something may not work, or does not work at this moment."""
    REPAIR = "repair"
    """Something works again."""
    CHANGE = "change"
    """Something was decided, or asked for by an operator."""
    NOTE = "note"
    """Nothing."""


def kind_of_class(name: str) -> str:
    """``SinkStopped`` is the kind ``sink_stopped``."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).removeprefix("_")


class Notice:
    """An event worth reporting. Each kind is a frozen dataclass; its texts are ``detail`` or names of things.

    Invariant: a kind belongs to one class, whose name it is made of.
    """

    kind: ClassVar[str] = ""
    effect: ClassVar[Effect]
    usual_severity: ClassVar[Severity]

    def __init_subclass__(cls, *, severity: Severity, effect: Effect) -> None:
        cls.kind = kind_of_class(cls.__name__)
        if cls.kind in _KINDS:
            raise TypeError(f"two kinds of notices have the same name: {cls.kind}")
        cls.usual_severity, cls.effect = severity, effect
        _KINDS[cls.kind] = cls

    @property
    def severity(self) -> Severity:
        return self.usual_severity

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Its fields by name."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]

    def names(self) -> frozenset[str]:
        """The names of everything that it is about: nodes, replicas, shards, streams, parts of the flow."""
        out: set[str] = set()
        for _, value in self.facts():
            for one in value if isinstance(value, tuple) else (value,):
                out |= _names(one)
        return frozenset(out)

    def with_texts(self, change: Callable[[str], str]) -> Self:
        """The same notice with every text in it changed, as to mask secrets."""
        changed: dict[str, Any] = {}
        for name, value in self.facts():
            if isinstance(value, str) and not isinstance(value, StrEnum):
                changed[name] = change(value)
            elif isinstance(value, tuple):
                changed[name] = tuple(change(one) if isinstance(one, str) else one for one in value)
        return replace(self, **changed) if changed else self  # type: ignore[type-var]


_KINDS: dict[str, type[Notice]] = {}


def _names(value: Any) -> set[str]:
    match value:
        case str():
            return {value}
        case ShardId():
            return {str(value), value.part}
        case ReplicaId():
            return {str(value)} | _names(value.shard)
        case StreamId():
            return {str(value)} | _names(value.producer) | _names(value.consumer)
    return set()


def known_kinds() -> dict[str, type[Notice]]:
    """All kinds of notices that there are."""
    return dict(_KINDS)


@dataclass(frozen=True)
class UnknownNotice(Notice, severity=Severity.WARNING, effect=Effect.NOTE):
    """A notice of a process with another version: ``name`` is its kind, ``data`` are its fields as JSON."""

    name: str
    data: str
    reported_severity: Severity = Severity.WARNING

    @property
    def severity(self) -> Severity:
        return self.reported_severity


@dataclass(frozen=True)
class Reported:
    """A notice as it is in a history: when and by which node it was reported."""

    time_ms: int
    node: NodeId
    notice: Notice
