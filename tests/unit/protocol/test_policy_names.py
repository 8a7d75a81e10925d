"""The kernel has no ``if`` for a policy: outside of policies, code asks for a property, never for a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unbroken
from unbroken.protocol.combinations import NAMES
from unbroken.protocol.registry import KERNEL

SOURCE = Path(unbroken.__file__).parent

OWN = ("protocol/policies/", "node/policies/")
"""What is removed with a policy."""

WORDS = {
    "protocol/combinations.py": "it finds out which policies a flow uses",
    "flow/plan.py": "it turns the words of users into a topology",
    "flow/ordering.py": "it turns the words of users into a topology",
    "testing/verdict.py": "it compares what sinks got by the guarantee that was asked for",
}

ENUMS = ("Ha", "Reconcile")
KEPT = {name.upper() for name in KERNEL}
CLEAR_FLAGS = ("at_most_once", "bucketed", "shares")
FLAGS = (*CLEAR_FLAGS, "led", "whole")
"""What a topology has for single policies; some of its names are also those of other things."""


def _names(tested: ast.expr) -> Iterator[str]:
    """The policies that an expression names, but for names of users, which may be words of others."""
    for node in ast.walk(tested):
        match node:
            case ast.Attribute(value=ast.Name(id=enum), attr=member) if enum in ENUMS and member not in KEPT:
                yield f"{enum}.{member}"
            case ast.Attribute(attr=flag) if flag in CLEAR_FLAGS:
                yield flag
            case ast.Attribute(value=ast.Name(id="topology") | ast.Attribute(attr="topology"), attr=flag):
                if flag in FLAGS:
                    yield f"topology.{flag}"


def _words(compared: ast.expr) -> Iterator[str]:
    """The policies that a value is compared with by the names of users."""
    match compared:
        case ast.Constant(value=str(word)) if word in NAMES:
            yield repr(word)
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            yield from (word for element in elts for word in _words(element))


def branches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where code decides something by the name of a policy."""
    for node in ast.walk(tree):
        tested: list[ast.expr] = []
        compared: list[ast.expr] = []
        match node:
            case ast.Compare():
                tested = compared = [node.left, *node.comparators]
            case ast.MatchValue():
                tested = compared = [node.value]
            case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
                tested = [node.test]
            case ast.BoolOp():
                tested = node.values
            case ast.UnaryOp(op=ast.Not()):
                tested = [node.operand]
            case ast.comprehension():
                tested = node.ifs
        yield from ((each.lineno, name) for each in tested for name in _names(each))
        yield from ((each.lineno, word) for each in compared for word in _words(each))


@pytest.mark.parametrize(
    "code",
    [
        "strategy.ha is Ha.PASSIVE",
        "strategy.ha in (Ha.ACTIVE, Ha.UPSTREAM)",
        "flow.settings.pairs == 'cluster'",
        "x = 1 if node.topology.whole else 0",
        "[part for part in parts if not topology.led]",
        "match how:\n    case Reconcile.UNDO: pass",
    ],
)
def test_a_branch_is_found(code: str) -> None:
    assert [*branches(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["strategy.ha is Ha.ACTIVE", "Strategy(Ha.PASSIVE)", "replace(x, whole=was.topology.whole)"]
)
def test_a_name_alone_is_no_branch(code: str) -> None:
    assert not [*branches(ast.parse(code))]


def test_code_outside_of_policies_does_not_branch_on_them() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith(OWN) and place not in WORDS:
            found += [f"{place}:{line}: {name}" for line, name in sorted(set(branches(ast.parse(path.read_text()))))]
    assert not found, "\n".join(found)
