"""Networks for tests, written as text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from unbroken.errors import FlowError, Problem
from unbroken.flow.dataflow import Dataflow
from unbroken.flow.loading import load_text

FILE = Path("net.yaml")

SOURCES = """\
name: small
sources:
  clicks: {push: {schema: "user string, url string, ms long, at timestamp"}}
  views: {push: {schema: "id string, seen timestamp"}}
"""


def network(operators: str, sinks: str | None = None, head: str = SOURCES) -> str:
    """A network with these operators, each of which has a sink unless others are given."""
    body = textwrap.indent(textwrap.dedent(operators).strip("\n"), "  ")
    if sinks is None:
        names = [
            line.strip().partition(":")[0] for line in body.splitlines() if line.startswith("  ") and line[2] != " "
        ]
        lines = [f"seen-{name}: {{input: {name}, client: {{}}}}" for name in names]
        sinks = "\n".join(lines)
    return f"{head}operators:\n{body}\nsinks:\n{textwrap.indent(textwrap.dedent(sinks).strip(chr(10)), '  ')}\n"


def load(text: str, path: Path = FILE, generation: int = 1) -> Dataflow:
    return load_text(path, text, generation)


def problems_of(text: str, path: Path = FILE) -> list[Problem]:
    """What is wrong with a network; every problem says where, what and what to do."""
    with pytest.raises(FlowError) as caught:
        load(text, path)
    for problem in caught.value.problems:
        assert problem.where.startswith(f"{path}:") and problem.what and problem.remedy
    return caught.value.problems


def line_of(text: str, piece: str) -> int:
    """The line in which a piece of a text first occurs."""
    return text[: text.index(piece)].count("\n") + 1
