"""The state of a protocol object as bytes, so that a journal can begin in the middle of a node's life.

A protocol object is a graph of objects. Its constructor makes the parts, the containers that they share and the
callbacks between them, always in the same order: the frame (`Frame`). A checkpoint has what the parts hold, and names
parts by their place in that order. To read one, a protocol object is made from the same beginning, and its parts are
given what those of the checkpoint held. So there is no code in a checkpoint, and no constructor is called for it:
classes are those of the protocol that this process has.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import msgspec

from unbroken.codecs.derivation import TEXTS, Bodies
from unbroken.protocol.machine import NodeProtocol

MOST_OBJECTS = 20_000
"""A larger graph is not written: the loop waits for it, by measurement 3 to 6 us for each object."""

OURS = "unbroken.protocol."
"""The modules whose classes a checkpoint may name."""

ATOMS = (type(None), bool, str, float)
CONTAINERS = (dict, list, set, deque, Counter, defaultdict)
CALLS = (FunctionType, MethodType, partial, type)
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
"""Integers as MessagePack has them; others are text."""


class NoCheckpoint(Exception):
    """A graph cannot be written, or a checkpoint does not fit the beginning that it is read with."""


class Frame:
    """What the constructor of a protocol object has made, in its order; taken before the first event."""

    def __init__(self, protocol: NodeProtocol) -> None:
        self.parts: list[Any] = []
        self.places: dict[int, int] = {}
        """The place of each part by its identity; ``parts`` keeps them all alive."""
        self._seen: dict[int, Any] = {}
        todo: list[Any] = [protocol]
        while todo:
            todo += reversed(list(self._take(todo.pop())))
        names = " ".join(_name(part if isinstance(part, type) else type(part)) for part in self.parts)
        self.digest = hashlib.blake2b(names.encode(), digest_size=8).digest()

    def _take(self, value: Any) -> Iterator[Any]:
        """Note a value if it is a part; what it holds."""
        if id(value) in self._seen or isinstance(value, (Enum, bytes, int, *ATOMS, *TEXTS)):
            return
        self._seen[id(value)] = value
        if _is_part(value):
            self.places[id(value)] = len(self.parts)
            self.parts.append(value)
        match value:
            case type() | set() | frozenset():
                return  # their order is another one in every process
            case MethodType():
                yield value.__self__
            case partial():
                yield from (value.func, *value.args, *value.keywords.values())
            case FunctionType():
                yield from (cell.cell_contents for cell in value.__closure__ or ())
            case dict():
                for key, held in value.items():
                    yield from (key, held)
            case list() | tuple() | deque():
                yield from value
            case _ if _is_ours(type(value)):
                yield from _held(value).values()


def _is_part(value: Any) -> bool:
    """Whether a value is itself, and not what it holds."""
    return isinstance(value, (*CONTAINERS, *CALLS)) or (_is_ours(type(value)) and not _is_value(type(value)))


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(OURS)


def _is_value(kind: type) -> bool:
    """Frozen: it is what its fields are, and what else it keeps follows from them."""
    return is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _held(value: Any) -> dict[str, Any]:
    """What an object holds, by attribute."""
    if _is_value(type(value)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(vars(value))


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


class _Writer:
    """The table of a graph. Values that are no parts come after what they hold."""

    def __init__(self, frame: Frame, bodies: Bodies, text: Callable[[str], str]) -> None:
        self._frame, self._bodies, self._text = frame, bodies, text
        self.table: list[Any] = []
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []
        self._open: list[tuple[int, Any]] = []

    def write(self) -> None:
        for part in self._frame.parts:
            self._refer(part)
        while self._open:
            place, value = self._open.pop()
            self.table[place].append(self._content(value))

    def _refer(self, value: Any) -> Any:
        """An atom as itself, anything else as its place in the table."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind in ATOMS or (kind is int and SMALLEST <= value <= LARGEST):
            return value
        place = self._places.get(id(value))
        if place is None:
            if len(self.table) > MOST_OBJECTS:
                raise NoCheckpoint(f"more than {MOST_OBJECTS} objects")
            self._kept.append(value)
            place = self._add(value, kind)
            self._places[id(value)] = place
        return [place]

    def _add(self, value: Any, kind: type) -> int:
        part = self._frame.places.get(id(value))
        if part is not None:
            entry, later = ["part", part], not isinstance(value, CALLS)
        elif isinstance(value, Enum):
            entry, later = ["enum", _name(kind), value.name], False
        elif kind in TEXTS:
            entry, later = ["text", _name(kind), str(value)], False
        elif isinstance(value, bytes):
            entry, later = ["bytes", *self._bodies.digest(value)], False
        elif isinstance(value, int):
            entry, later = ["int", str(value)], False
        elif kind in (tuple, frozenset):
            entry, later = [kind.__name__, [self._refer(each) for each in value]], False
        elif _is_ours(kind) and isinstance(value, tuple):
            entry, later = ["named", _name(kind), [self._refer(each) for each in value]], False
        elif kind in CONTAINERS:
            entry, later = [kind.__name__], True
        elif _is_ours(kind) and _is_value(kind):
            entry, later = ["value", _name(kind), self._attributes(value)], False
        elif _is_ours(kind) and not isinstance(value, type):
            entry, later = ["object", _name(kind)], True
        else:
            raise NoCheckpoint(f"a {kind.__module__}.{kind.__qualname__} is in the protocol's state")
        self.table.append(entry)
        if later:
            self._open.append((len(self.table) - 1, value))
        return len(self.table) - 1

    def _content(self, value: Any) -> Any:
        if isinstance(value, dict):
            return [[self._refer(key), self._refer(held)] for key, held in value.items()]
        if isinstance(value, list | set | deque):
            return [self._refer(each) for each in value]
        return self._attributes(value)

    def _attributes(self, value: Any) -> dict[str, Any]:
        return {name: self._refer(held) for name, held in _held(value).items()}


def write_checkpoint(frame: Frame, bodies: Bodies, text: Callable[[str], str] = str) -> bytes:
    """The state of the protocol object that the frame was taken of; ``text`` changes every text in it.

    Raises
    ------
    NoCheckpoint
        If there is too much of it.
    """
    writer = _Writer(frame, bodies, text)
    writer.write()
    return msgspec.msgpack.encode([frame.digest, writer.table])


def read_checkpoint(protocol: NodeProtocol, data: bytes, bodies: Bodies) -> NodeProtocol:
    """Give a protocol object, which has handled nothing, the state in a checkpoint.

    Raises
    ------
    NoCheckpoint
        If the checkpoint does not fit the protocol object, or is none.
    """
    frame = Frame(protocol)
    try:
        digest, table = msgspec.msgpack.decode(data, type=tuple[bytes, list[list[Any]]])
        if digest != frame.digest:
            raise NoCheckpoint("it was written by a protocol object with other parts")
        _Reader(frame, table, bodies).read()
    except NoCheckpoint:
        raise
    except Exception as error:  # whatever bytes do to classes that are given their fields
        raise NoCheckpoint(f"{type(error).__name__}: {error}") from None
    return protocol


class _Reader:
    def __init__(self, frame: Frame, table: list[list[Any]], bodies: Bodies) -> None:
        self._frame, self._table, self._bodies = frame, table, bodies
        self._classes = _classes()
        self._made: list[Any] = [_UNMADE] * len(table)

    def read(self) -> None:
        filled = [place for place, entry in enumerate(self._table) if self._shell(place, entry)]
        for place, entry in enumerate(self._table):
            if self._made[place] is _UNMADE:
                self._made[place] = self._value(entry)
        for place in filled:
            self._fill(self._made[place], self._table[place][-1])

    def _shell(self, place: int, entry: list[Any]) -> bool:
        """Make what is filled later, so that values may refer to it; whether it is."""
        match entry:
            case ["part", part, *content]:
                self._made[place] = self._frame.parts[part]
                return bool(content)
            case ["object", name, _]:
                kind = self._class(name)
                if _is_value(kind):
                    raise NoCheckpoint(f"{name} is a value")
                self._made[place] = object.__new__(kind)
                return True
            case ["defaultdict", _]:
                raise NoCheckpoint("a defaultdict that is no part")
            case [str() as name, _] if name in _EMPTY:
                self._made[place] = _EMPTY[name]()
                return True
        return False

    def _value(self, entry: list[Any]) -> Any:
        match entry:
            case ["enum", name, member]:
                return self._class(name, Enum)[member]  # type: ignore[index]
            case ["text", name, str() as text]:
                return {_name(kind): parse for kind, parse in TEXTS.items()}[name](text)
            case ["bytes", length, digest]:
                return self._bodies.stand_in((length, digest))
            case ["int", text]:
                return int(text)
            case ["tuple", held]:
                return tuple(map(self._found, held))
            case ["frozenset", held]:
                return frozenset(map(self._found, held))
            case ["named", name, held]:
                return tuple.__new__(self._class(name, tuple), map(self._found, held))
            case ["value", name, held]:
                return self._instance(self._class(name), held)
        raise NoCheckpoint(f"an entry {str(entry)[:40]!r}")

    def _instance(self, kind: type, held: Mapping[str, Any]) -> Any:
        if not _is_value(kind) or {field.name for field in fields(kind)} != set(held):
            raise NoCheckpoint(f"{_name(kind)} with other fields")
        out: Any = object.__new__(kind)
        for name, value in held.items():
            object.__setattr__(out, name, self._found(value))
        return out

    def _fill(self, made: Any, content: Any) -> None:
        if isinstance(made, dict):
            made.clear()
            for key, held in content:
                made[self._found(key)] = self._found(held)
        elif isinstance(made, list | set | deque):
            made.clear()
            add = made.add if isinstance(made, set) else made.append
            for held in content:
                add(self._found(held))
        elif isinstance(made, CALLS) or _is_value(type(made)):
            raise NoCheckpoint("a part that holds nothing is filled")
        else:
            vars(made).clear()
            vars(made).update({name: self._found(held) for name, held in content.items()})

    def _found(self, held: Any) -> Any:
        if not isinstance(held, list):
            return held
        (place,) = held
        value = self._made[place]
        if value is _UNMADE:
            raise NoCheckpoint("a value refers to a later one")
        return value

    def _class(self, name: str, kind: type = object) -> type:
        found = self._classes.get(name)
        if found is None or not issubclass(found, kind):
            raise NoCheckpoint(f"{name} is no class of the protocol")
        return found


_UNMADE = object()
_EMPTY: Mapping[str, Callable[[], Any]] = {kind.__name__: kind for kind in (dict, list, set, deque, Counter)}


def _classes() -> dict[str, type]:
    """The classes of the protocol by name."""
    out: dict[str, type] = {}
    for module in [module for name, module in sys.modules.items() if name.startswith(OURS)]:
        for found in vars(module).values():
            if isinstance(found, type) and _is_ours(found):
                out[_name(found)] = found
    return out
