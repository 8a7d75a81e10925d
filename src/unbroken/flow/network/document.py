"""Reads YAML into plain values that know their lines.

Only the structure is taken from PyYAML: nothing is constructed, so that a file cannot do anything, keys are always the
text that was written, and lines stay known. Scalars follow YAML 1.2: ``on``, ``yes``, ``12:30`` and ``=`` are text, as
people who write networks expect, not booleans, numbers of base 60 or a special mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Scalar = str | int | float | bool | None

MAX_VALUES = 100_000
"""Aliases can make a small file stand for an endless document; no network is this large."""

_PREFIX = "tag:yaml.org,2002:"
_NULL, _BOOL, _INT, _FLOAT, _TEXT = (f"{_PREFIX}{kind}" for kind in ("null", "bool", "int", "float", "str"))


@dataclass(frozen=True)
class Value:
    """A value of the document and the line where it begins."""

    line: int
    content: Scalar | tuple[Value, ...] | dict[str, DocumentEntry]

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.content, dict):
            return {key: entry.value.plain() for key, entry in self.content.items()}
        if isinstance(self.content, tuple):
            return [value.plain() for value in self.content]
        return self.content


@dataclass(frozen=True)
class DocumentEntry:
    """What a mapping has under a key, and the line of the key."""

    line: int
    value: Value


@dataclass(frozen=True)
class Mistake:
    """Something in the text that cannot be meant so."""

    line: int
    what: str
    remedy: str


class NotYaml(Exception):
    """The text has no structure that could be read; what is wrong is the argument."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(mistake.what)
        self.mistake = mistake


class _Loader(yaml.SafeLoader):
    """Knows the plain scalars of YAML 1.2, except for infinities."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (PyYAML's own form)


_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"), list("-+0123456789.")
)


def read_document(text: str) -> tuple[Value, list[Mistake]]:
    """The document and what is wrong with its keys and tags.

    Raises
    ------
    NotYaml
        If the text cannot be read at all.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise NotYaml(_syntax(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character #x{int(error.character):04x} cannot be in YAML"
        raise NotYaml(Mistake(line, what, "remove it; the file must be UTF-8 text")) from None
    except RecursionError:
        raise NotYaml(Mistake(1, "it is nested too deeply", "a network has a handful of levels")) from None
    if root is None:
        raise NotYaml(Mistake(1, "the file is empty", "describe a network: name, sources, operators and sinks"))
    reader = _Reader()
    return reader.value(root, ()), list(reader.mistakes)


def _syntax(error: yaml.MarkedYAMLError) -> Mistake:
    mark = error.problem_mark or error.context_mark
    line = 1 if mark is None else mark.line + 1
    what = ", ".join(part for part in (error.context, error.problem) if part)
    remedy = "quote text with special characters (: , # { } [ ] > ! * & %) and indent with spaces"
    return Mistake(line, f"this is not YAML: {what}", remedy)


class _Reader:
    """Turns PyYAML's nodes into values; what cannot be meant is noted, and the rest is read on."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self._left = MAX_VALUES

    def value(self, node: yaml.Node, around: tuple[yaml.Node, ...]) -> Value:
        line = node.start_mark.line + 1
        self._left -= 1
        if any(node is outer for outer in around):
            raise NotYaml(Mistake(line, "an alias refers to what it stands in", "write the value out"))
        if self._left < 0:
            raise NotYaml(Mistake(line, f"there are more than {MAX_VALUES} values", "use fewer aliases"))
        inside = (*around, node)
        if isinstance(node, yaml.MappingNode):
            return Value(line, dict(self._entries(node, inside)))
        if isinstance(node, yaml.SequenceNode):
            return Value(line, tuple(self.value(item, inside) for item in node.value))
        return Value(line, self._scalar(node, line))

    def _entries(self, node: yaml.MappingNode, inside: tuple[yaml.Node, ...]) -> Iterator[tuple[str, DocumentEntry]]:
        first: dict[str, int] = {}
        for key, held in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(Mistake(line, "a key is a list or a mapping", "use a name as the key"))
                continue
            name: str = key.value
            value = self.value(held, inside)
            if name in first:
                what = f"the key {name!r} is there twice, first in line {first[name]}"
                self.mistakes.append(Mistake(line, what, "keep one of them, or rename one"))
                continue
            first[name] = line
            yield name, DocumentEntry(line, value)

    def _scalar(self, node: yaml.Node, line: int) -> Scalar:
        text: str = node.value
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        try:
            if node.tag == _INT:
                return int(text)
            if node.tag == _FLOAT:
                return float(text)
        except ValueError:  # More digits than Python reads, or a tag that claims what the text is not.
            self.mistakes.append(Mistake(line, f"{text[:40]!r} is not a number", "write a number, or quote text"))
            return 0
        if node.tag != _TEXT:
            what = f"the tag {node.tag.removeprefix(_PREFIX)!r} has no meaning here"
            self.mistakes.append(Mistake(line, what, "remove it; quote text that begins with '!'"))
        return text
