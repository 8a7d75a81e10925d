"""Codecs: values of a type as bytes that say what they are, and of which version.

The bytes begin with the name and the version, as in ``layout/1 {...}``. So something else that is found in the place
of a value, and a value that another version of this software wrote, are told from damage. What follows is JSON where a
person may want to read it (documents in ZooKeeper, small files), else MessagePack, which also has bytes and all floats.

There is no reading of older versions: all nodes of a flow run the same version, and a version changes with the type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, UnionType
from typing import Any, Generic, TypeVar

import msgspec

from unbroken.codecs.derivation import derive
from unbroken.errors import InvariantViolation, UnbrokenError

T = TypeVar("T")

SHOWN = 120
"""Bytes of a value that an error shows."""

VERSION_REMEDY = "Run the same version of unbroken everywhere."

_HEAD = re.compile(rb"([a-z-]{1,40})/([0-9]{1,9}) ")
_REGISTERED: dict[str, Codec[Any]] = {}
CODECS: Mapping[str, Codec[Any]] = MappingProxyType(_REGISTERED)
"""All codecs of the modules that are imported, by name."""


class Undecodable(UnbrokenError):
    """Bytes that are not a value of the type that was expected."""


class Codec(Generic[T]):
    """Writes and reads values of one type, a dataclass or a union of them.

    ``decode(encode(x)) == x`` if all texts of x are Unicode. Whatever bytes `decode` is given, it returns a value whose
    fields have the declared types, or raises Undecodable.
    """

    def __init__(self, kind: type[T] | UnionType, name: str, version: int = 1, *, readable: bool = False) -> None:
        if name in _REGISTERED:
            raise ValueError(f"there is a codec of {name} already")
        derived = derive(kind, by_name=readable)
        self.kind: Any = kind
        self.name = name
        self.version = version
        self.readable = readable
        self._head = f"{name}/{version} ".encode()
        self._read: Callable[[memoryview], Any]
        self._out, self._back = derived.out, derived.back
        encoder = msgspec.json.Encoder() if readable else msgspec.msgpack.Encoder()
        self._write, self._write_into = encoder.encode, encoder.encode_into
        kind_of_decoder = msgspec.json.Decoder if readable else msgspec.msgpack.Decoder
        self._read = kind_of_decoder(derived.wire).decode
        _REGISTERED[name] = self

    def encode(self, value: T) -> bytes:
        plain = self._out(value)
        try:
            return self._head + self._write(plain)
        except UnicodeEncodeError:
            return self._head + self._write(_cleaned(plain))

    def buffer(self, value: T) -> bytearray:
        """The same bytes as `encode`, copied once instead of twice: for values that may have the rows of users."""
        out, plain = bytearray(self._head), self._out(value)
        try:
            self._write_into(plain, out, len(out))
        except UnicodeEncodeError:
            self._write_into(_cleaned(plain), out, len(self._head))
        return out

    def decode(self, data: bytes) -> T:
        """Raises Undecodable for anything else than a value of this type and version."""
        head = self._head
        if not data.startswith(head):
            raise self._foreign(data)
        try:
            value: T = self._back(self._read(memoryview(data)[len(head) :]))
        except (ValueError, OverflowError, RecursionError, InvariantViolation, UnbrokenError) as error:
            raise Undecodable(f"a {self.name} cannot be read: {error} ({_shown(data)})") from None
        return value

    def begins(self, data: bytes) -> bool:
        """Whether ``data`` says that it is a value of this codec, whatever its version."""
        return data.startswith(self._head) or bytes(data[: len(self.name) + 1]) == f"{self.name}/".encode()

    def _foreign(self, data: bytes) -> Undecodable:
        found = _HEAD.match(data)
        if found is None or found[1].decode() != self.name:
            return Undecodable(f"this is no {self.name}: {_shown(data)}")
        what = f"a {self.name} of version {int(found[2])} cannot be read: version {self.version} is known here"
        return Undecodable(f"{what}. {VERSION_REMEDY}")


def _cleaned(value: Any) -> Any:
    """The same without halves of surrogate pairs, which no bytes stand for: a reason may quote the name of any file."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list | tuple) else value


def _shown(data: bytes) -> str:
    return f"{bytes(data[:SHOWN])!r}{'...' if len(data) > SHOWN else ''}"
