"""All sentences that a history can have, found in the code that says them.

Where a sentence is told (``Report(...)``, ``tell(...)`` and their kind) the expression is followed to the texts it can
be: through variables, alternatives and functions that make sentences. What is filled in when it runs may be anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs.pages import ROOT

PACKAGE = ROOT / "src" / "unbroken"
PLACES = (
    "connectors/dead_letters.py",
    "protocol/**/*.py",
    "coordination/**/*.py",
    "node/**/*.py",
    "operations/*.py",
    "local/*.py",
    "spark/life.py",
)
"""Where sentences are made and told."""

TELLING = {"Report": 0, "tell": 0, "report": 0, "fail": 0, "EndNode": 0, "ReportCaughtUp": 1}
"""Calls that tell a sentence, and which of their arguments it is."""

MAKING = "tend"
"""The function whose texts `unbroken run` tells by itself: they are not in the history but beside it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Template:
    """A sentence as the code has it; ``…`` stands for what is filled in."""

    text: str
    where: str

    def matches(self, sentence: str) -> bool:
        pattern = ".+".join(re.escape(piece) for piece in self.text.split("…"))
        return re.fullmatch(pattern, sentence) is not None


@dataclass
class Collector:
    """``passed_on`` are the functions that tell what they are given, so that there is nothing to follow."""

    functions: dict[str, list[tuple[str, Function]]] = field(default_factory=dict)
    found: dict[str, Template] = field(default_factory=dict)
    passed_on: set[str] = field(default_factory=set)

    def collect(self) -> Collector:
        trees = {path: ast.parse(path.read_text()) for place in PLACES for path in sorted(PACKAGE.glob(place))}
        for path, tree in trees.items():
            for function in _functions(tree):
                self.functions.setdefault(function.name, []).append((_name(path), function))
        for path, tree in trees.items():
            for function in _functions(tree):
                where = f"{_name(path)}:{function.name}"
                for expression in _told(function):
                    texts = list(self._texts(expression, function))
                    if not texts:
                        self.passed_on.add(where)
                    for text in sorted(set(texts) - {"…"}):
                        self.found.setdefault(text, Template(text, f"{_name(path)}:{expression.lineno}"))
        return self

    def _texts(self, expression: ast.expr, function: Function) -> Iterator[str]:
        """What an expression in a function can be, as far as that is written down."""
        match expression:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=pieces):
                yield from self._joined(pieces, function)
            case ast.IfExp(body=one, orelse=other):
                either = [list(self._texts(branch, function)) for branch in (one, other)]
                for texts in either if any(either) else ():
                    yield from texts or ["…"]
            case ast.Name(id=name):
                yield from self._variable(name, function)
            case ast.Call(func=ast.Name(id="str")):
                yield from self.made("__str__")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield from self.made(name)

    def _joined(self, pieces: list[ast.expr], function: Function) -> Iterator[str]:
        """A text with parts that are filled in, some of which may themselves be one of a few texts."""
        texts = [""]
        for piece in pieces:
            match piece:
                case ast.Constant(value=str(text)):
                    filled = [text]
                case ast.FormattedValue(value=ast.Name() | ast.IfExp() as value):
                    filled = sorted(set(self._texts(value, function))) or ["…"]
                case _:
                    filled = ["…"]
            texts = [text + more for text in texts for more in filled]
        yield from texts

    def _variable(self, name: str, function: Function) -> Iterator[str]:
        texts: list[str] = []
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    texts += self._texts(value, function)
                case ast.For(target=ast.Name(id=target), iter=ast.Call() as value) if target == name:
                    texts += self._texts(value, function)
                case ast.AugAssign(target=ast.Name(id=target), value=value) if target == name:
                    texts += [text + tail for text in list(texts) for tail in self._texts(value, function)]
        yield from texts

    def made(self, name: str) -> Iterator[str]:
        """What functions of this name can return, alone or in a list, if they return texts."""
        for _, function in self.functions.get(name, []):
            kind = "" if function.returns is None else ast.unparse(function.returns)
            if kind not in ("str", "str | None", "list[str]"):
                continue
            for node in ast.walk(function):
                match node:
                    case ast.Return(value=ast.expr() as value):
                        yield from self._texts(value, function)
                    case ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id="out")), args=[value]):
                        yield from self._texts(value, function)


def _told(function: Function) -> Iterator[ast.expr]:
    """The expressions in a function that become sentences."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments) if name in TELLING:
                place = TELLING[name]
                if len(arguments) == place + 1:
                    yield arguments[place]
            case ast.Call(func=ast.Attribute(attr="append", value=ast.Attribute(attr="sentences")), args=[sentence]):
                yield sentence
            case ast.Call(func=ast.Attribute(attr="append", value=ast.Name(id="out")), args=[sentence]):
                if function.name == MAKING:
                    yield sentence
            case ast.AugAssign(target=ast.Attribute(attr="sentences"), value=ast.ListComp(elt=sentence)):
                yield sentence
            case ast.Call(func=ast.Name(id="Decision"), args=[_, ast.Tuple(elts=sentences)]):
                yield from sentences


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()
