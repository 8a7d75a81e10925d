"""How a type is written and read, derived from its fields.

A value that goes over a wire or onto a disk is a frozen dataclass of plain fields. For every such class a struct of
msgspec is made that has the same fields, and two functions between them. The struct is strict: msgspec itself refuses a
field too many, a field that is missing and a value of another type. The dataclasses know nothing of it, so that the
protocol stays free of how it is written.

=========================== ========================================================================
annotation                  written as
=========================== ========================================================================
dataclass                   its fields in their order (array) or by name (object)
union of dataclasses        the same with the class's name, in words, as a tag; PolicyMessage and its like stand for
                            all that the policies declare of the kind
StreamId, ReplicaId, ...    text; equal texts are read as one object, which has its hash already
frozenset                   a sorted array: equal values have equal bytes
Mapping                     a map, in its own order: that of nodes, for one, has a meaning; with tuples as keys, which
                            no object of JSON has, an array of keys and values
Notice                      its kind, severity and fields by name; a kind that is not known is an UnknownNotice
Any                         JSON text: all that a connector may call a position, also halves of surrogate pairs
int, str, bytes, Enum       themselves
=========================== ========================================================================
"""

from __future__ import annotations

import json
import re
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, ForwardRef, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from unbroken.protocol.registry import declared
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Notice, Severity, UnknownNotice, known_kinds
from unbroken.protocol.vocabulary import PolicyEvent, PolicyInstruction, PolicyMessage

NAMES_KEPT = 4096
"""Texts of ids that are remembered with the object they stand for; a flow has some hundreds."""

TEXTS: Mapping[type, Callable[[str], object]] = {
    StreamId: StreamId.parse,
    ReplicaId: lru_cache(NAMES_KEPT)(ReplicaId.parse),
    ShardId: lru_cache(NAMES_KEPT)(ShardId.parse),
    Path: Path,
}
"""Types that are written as their text, and how it is read."""

_json_text = json.JSONEncoder(separators=(",", ":")).encode


TAG = "kind"
"""The field of an object, or the first of an array, that says which member of a union it is."""

OPEN = (PolicyMessage, PolicyEvent, PolicyInstruction)
"""Classes that stand for all that the policies declare of the kind."""

PLAIN = (int, str, bool, float, bytes, type(None))


Rewriting = Callable[[str], str]
"""The text of an expression, from the text of the one whose value it changes."""


@dataclass(frozen=True)
class Shape:
    """What msgspec reads for an annotation, how it is made from a value, and a value from it; None: it is the value."""

    wire: Any
    out: Rewriting | None = None
    back: Rewriting | None = None

    def written(self, value: str) -> str:
        return value if self.out is None else self.out(value)

    def read(self, value: str) -> str:
        return value if self.back is None else self.back(value)

    @property
    def plain(self) -> bool:
        return self.out is None and self.back is None


@dataclass(frozen=True)
class Derived:
    """A type that can be written: ``wire`` is what msgspec reads; ``out`` and ``back`` go there and back."""

    wire: Any
    out: Callable[[Any], Any]
    back: Callable[[Any], Any]


class Bodies(Protocol):
    """Another form of bytes, for a place that is not to have them."""

    def digest(self, data: bytes) -> tuple[int, bytes]: ...

    def stand_in(self, told: tuple[int, bytes]) -> bytes: ...


_LOOKING = threading.Lock()
"""msgspec crashes if one thread reads a value of a type while another one looks into that type for the first time. So
that is done here, by one thread at a time, before any other thread knows the type."""


def derive(annotation: Any, *, by_name: bool, bodies: Bodies | None = None) -> Derived:
    """Raises TypeError for an annotation that has no rule here."""
    making = _Derivation(by_name, bodies)
    shape = making.shape(annotation)
    with _LOOKING:
        msgspec.msgpack.Decoder(shape.wire)
    out = making.function(making.name(), shape.written("value"))
    return Derived(shape.wire, out, making.function(making.name(), shape.read("value")))


def concrete(members: Sequence[Any]) -> list[Any]:
    """The members of a union; what policies add to it in the place of the class that stands for it."""
    return [kind for each in members for kind in (declared(each) if each in OPEN else (each,))]


def tag_of(kind: type) -> str:
    """The name of a class in words: ``AppendAck`` is ``append-ack``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", kind.__name__).lower()


class _Derivation:
    """The structs and functions of one type and of everything that its fields are made of."""

    def __init__(self, by_name: bool, bodies: Bodies | None) -> None:
        self._by_name = by_name
        self._bodies = bodies
        self._known: dict[tuple[type, bool], Shape] = {}
        self._functions: dict[tuple[type, bool], tuple[str, str]] = {}
        self._values: dict[str, Any] = {}
        self._number = count()

    def name(self, value: Any = None) -> str:
        """A name that nothing else has in the functions made here, for ``value``."""
        name = f"_{next(self._number)}"
        self._values[name] = value
        return name

    def function(self, name: str, expression: str) -> Any:
        """A function of ``value``; it is compiled, as a dataclass is, because it runs for every message."""
        exec(f"def {name}(value):\n    return {expression}", self._values)
        return self._values[name]

    def shape(self, annotation: Any) -> Shape:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation is bytes and self._bodies is not None:
            digest, stand_in = self.name(self._bodies.digest), self.name(self._bodies.stand_in)
            return Shape(tuple[int, bytes], lambda value: f"{digest}({value})", lambda value: f"{stand_in}({value})")
        if annotation in PLAIN or origin is Literal:
            return Shape(annotation)
        if annotation is Any:
            dumps, loads = self.name(_json_text), self.name(json.loads)
            return Shape(str, lambda value: f"{dumps}({value})", lambda value: f"{loads}({value})")
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis:
            return self._row([self.shape(each) for each in arguments])
        if origin in (tuple, list, frozenset, Sequence):
            return self._many(origin, self.shape(arguments[0]))
        if origin in (dict, Mapping) and get_origin(arguments[0]) is tuple:
            return self._pairs(self._row([self.shape(each) for each in arguments]))
        if origin in (dict, Mapping):
            return self._map(self.shape(arguments[0]), self.shape(arguments[1]))
        if isinstance(annotation, type):
            if annotation in TEXTS:
                parse = self.name(TEXTS[annotation])
                return Shape(str, lambda value: f"str({value})", lambda value: f"{parse}({value})")
            if annotation is Notice:
                out, back = self.name(notice_data), self.name(_notice_back)
                return Shape(_WrittenNotice, lambda value: f"{out}({value})", lambda value: f"{back}({value})")
            if issubclass(annotation, Enum):
                return Shape(annotation)
            if is_dataclass(annotation):
                return self._dataclass(annotation, tagged=False)
        raise TypeError(f"no rule says how {annotation} is written")

    def _union(self, annotations: Sequence[Any]) -> Shape:
        members = concrete(annotations)
        some = [each for each in members if each is not type(None)]
        if len(some) == 1:
            inner = self.shape(some[0])
            wire = _either([inner, Shape(type(None))])
            return Shape(wire) if inner.plain else Shape(wire, _unless_none(inner.written), _unless_none(inner.read))
        if all(isinstance(each, type) and is_dataclass(each) for each in members):
            return self._tagged(members)
        shapes = [self.shape(each) for each in members]
        if not all(shape.plain for shape in shapes):
            raise TypeError(f"no rule says how one of {members} is written")
        return Shape(_either(shapes))

    def _tagged(self, kinds: Sequence[Any]) -> Shape:
        shapes = [self._dataclass(kind, tagged=True) for kind in kinds]
        functions = [self._functions[kind, True] for kind in kinds]
        outs = self.name({kind: self._values[out] for kind, (out, _) in zip(kinds, functions, strict=True)})
        backs = {shape.wire: self._values[back] for shape, (_, back) in zip(shapes, functions, strict=True)}
        back = self.name(backs)
        return Shape(
            _either(shapes),
            lambda value: f"{outs}[type({value})]({value})",
            lambda value: f"{back}[type({value})]({value})",
        )

    def _row(self, shapes: Sequence[Shape]) -> Shape:
        wire = types.GenericAlias(tuple, tuple(shape.wire for shape in shapes))
        if all(shape.plain for shape in shapes):
            return Shape(wire)

        def each(value: str, steps: Sequence[Rewriting]) -> str:
            return "(" + "".join(step(f"{value}[{at}]") + ", " for at, step in enumerate(steps)) + ")"

        outs, backs = [shape.written for shape in shapes], [shape.read for shape in shapes]
        return Shape(wire, lambda value: each(value, outs), lambda value: each(value, backs))

    def _many(self, origin: Any, inner: Shape) -> Shape:
        made = {tuple: "tuple", list: "list", frozenset: "frozenset", Sequence: "tuple"}[origin]
        wire = types.GenericAlias(*((list, (inner.wire,)) if origin is list else (tuple, (inner.wire, ...))))
        item = self.name()
        outs, backs = inner.written(item), inner.read(item)
        if made == "frozenset":
            # A set has no order of its own, and equal sets are to have equal bytes.
            return Shape(
                wire,
                lambda value: f"sorted([{outs} for {item} in {value}])",
                lambda value: f"frozenset([{backs} for {item} in {value}])",
            )
        if inner.plain:
            return Shape(wire)
        return Shape(
            wire,
            lambda value: f"[{outs} for {item} in {value}]",
            lambda value: f"{made}([{backs} for {item} in {value}])",
        )

    def _map(self, key: Shape, value: Shape) -> Shape:
        wire = types.GenericAlias(dict, (key.wire, value.wire))
        if key.plain and value.plain:
            return Shape(wire, lambda mapping: f"dict({mapping})")
        k, v = self.name(), self.name()
        out = f"{{{key.written(k)}: {value.written(v)} for {k}, {v} in "
        back = f"{{{key.read(k)}: {value.read(v)} for {k}, {v} in "
        return Shape(wire, lambda mapping: f"{out}{mapping}.items()}}", lambda mapping: f"{back}{mapping}.items()}}")

    def _pairs(self, row: Shape) -> Shape:
        item = self.name()
        outs, backs = row.written(item), row.read(item)
        return Shape(
            types.GenericAlias(tuple, (row.wire, ...)),
            lambda mapping: f"[{outs} for {item} in {mapping}.items()]",
            lambda mapping: f"dict([{backs} for {item} in {mapping}])",
        )

    def _dataclass(self, kind: type, *, tagged: bool) -> Shape:
        known = self._known.get((kind, tagged))
        if known is not None:
            return known
        out, back, own = self.name(), self.name(), f"_Twin{next(self._number)}"
        self._functions[kind, tagged] = out, back
        steps = (lambda value: f"{out}({value})"), (lambda value: f"{back}({value})")
        # A field of the type itself, as in a tree, finds this one; msgspec looks the name up in the struct.
        self._known[kind, tagged] = Shape(ForwardRef(own), *steps)
        hints = get_type_hints(kind)
        parts = {each: self.shape(hints[each.name]) for each in fields(kind) if each.init}
        twin = msgspec.defstruct(
            kind.__name__,
            [(each.name, part.wire) for each, part in parts.items()],
            array_like=not self._by_name,
            forbid_unknown_fields=True,
            tag=tag_of(kind) if tagged else None,
            tag_field=TAG if tagged else None,
        )
        setattr(twin, own, twin)
        written = [(each.name, part.written(f"value.{each.name}")) for each, part in parts.items()]
        written = [(TAG, repr(tag_of(kind))), *written] if tagged else written
        if self._by_name:
            self.function(out, f"{{{''.join(f'{name!r}: {step}, ' for name, step in written)}}}")
        else:
            self.function(out, f"({''.join(f'{step}, ' for _, step in written)})")
        read = [f"{each.name}={part.read(f'value.{each.name}')}" for each, part in parts.items()]
        self.function(back, f"{self.name(kind)}({', '.join(read)})")
        self._known[kind, tagged] = Shape(twin, *steps)
        return self._known[kind, tagged]


class _WrittenNotice(msgspec.Struct, forbid_unknown_fields=True):
    """A notice of any kind: which fields it has to have is known when its kind is."""

    kind: str
    severity: Severity
    fields: dict[str, Any]


def notice_data(notice: Notice) -> dict[str, Any]:
    """A notice as plain data: its kind, severity and fields."""
    if isinstance(notice, UnknownNotice):
        kind, values = notice.name, json.loads(notice.data)
    else:
        kind, values = notice.kind, _fields_of(notice.kind).out(notice)
    return {"kind": kind, "severity": notice.severity.value, "fields": values}


def notice_from(kind: str, severity: Severity, values: Mapping[str, Any]) -> Notice:
    """The notice with these data; one of a kind that only a later version knows is an UnknownNotice.

    Raises
    ------
    ValueError
        If a known kind has other fields, or an unknown one has values that JSON does not have.
    """
    found = known_kinds().get(kind)
    if found is None or found is UnknownNotice:
        try:
            return UnknownNotice(kind, json.dumps(dict(values), sort_keys=True), severity)
        except TypeError as error:
            raise ValueError(f"the fields of the notice {kind!r}: {error}") from None
    form = _fields_of(kind)
    try:
        notice: Notice = form.back(msgspec.convert(dict(values), form.wire))
    except ValueError as error:
        raise ValueError(f"the fields of the notice {kind!r}: {error}") from None
    return notice


def _notice_back(written: _WrittenNotice) -> Notice:
    return notice_from(written.kind, written.severity, written.fields)


@cache
def _fields_of(kind: str) -> Derived:
    return derive(known_kinds()[kind], by_name=True)


def _either(shapes: Sequence[Shape]) -> Any:
    return Union.__getitem__(tuple(shape.wire for shape in shapes))


def _unless_none(step: Rewriting) -> Rewriting:
    return lambda value: f"(None if {value} is None else {step(value)})"
