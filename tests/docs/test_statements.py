"""What pages say in running text of commands, targets, paths and modules is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from docs.pages import ROOT, pages, text_of
from docs.shell_blocks import targets
from unbroken.cli import cli
from unbroken.cli.journal import JournalGroup

HOMES = {"unbroken": ROOT / "src", "unbroken_lab": ROOT / "lab" / "src", "fuzz": ROOT / "tests"}
"""Where packages are that pages name."""

PLACES = ("src", "lab", "tests", "docs", "deploy", "scripts", ".ci")
"""What the repository has at its top, as far as pages name something in it."""

SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
GONE = re.compile(r"\(before:\s.*?\)|which was .*?(?:\.\s|\n\n)", re.DOTALL)
"""How the changelog names what is not there any more."""

PATH = re.compile(rf"(?:{'|'.join(map(re.escape, PLACES))})/[\w./-]+")
MODULE = re.compile(rf"(?:{'|'.join(HOMES)})(?:\.\w+)+")
ANCHOR = re.compile(r"\]\((?!https?:)([\w./-]*\.md)?#([^)\s]+)\)")
OBJECT = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
COMMAND = re.compile(r"unbroken ([a-z].*)", re.DOTALL)

EVERYWHERE = [*pages(), "CHANGELOG.md"]


def spans(page: str) -> Iterator[str]:
    """What stands between backticks in the running text of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", GONE.sub("", text_of(page)), flags=re.DOTALL | re.MULTILINE)
    return (" ".join(found.split()) for found in SPAN.findall(text))


def missing_path(span: str) -> bool:
    return PATH.fullmatch(span) is not None and not (ROOT / span).exists()


def unknown_name(dotted: str) -> bool:
    """Whether a dotted name is neither a module nor something that a module has."""
    first, *rest = dotted.split(".")
    place = HOMES[first] / first
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    file = place / "__init__.py"
    if rest and (place / f"{rest[0]}.py").is_file():
        file = place / f"{rest.pop(0)}.py"
    # What a class has is its own; and names of another kind, such as those of attributes of spans, look the same.
    return bool(rest) and not re.search(rf"\b{re.escape(rest[0])}\b", _text(file)) and f'"{dotted}"' not in _quoted()


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


@cache
def _quoted() -> str:
    """Where names are written that are no modules."""
    files = [ROOT / "pyproject.toml", ROOT / "lab" / "pyproject.toml", *(ROOT / "src").rglob("*.py")]
    return "".join(file.read_text() for file in files)


def unknown_target(span: str) -> bool:
    words = span.split()
    return words[0] == "make" and any("=" not in word and word not in targets() for word in words[1:])


def unknown_command(span: str) -> str | None:
    """What a command has not got, of the names of commands and options in a span such as ``unbroken run --dir``."""
    found = COMMAND.fullmatch(span)
    if found is None:
        return None
    command: click.Command = cli
    context = click.Context(cli)
    for word in re.split(r"\s(?:\\?\||&&|;)\s", found[1])[0].split():
        if word.startswith("-"):
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
            if word.partition("=")[0] not in known:
                return f"unbroken {command.name} has no {word}"
        elif isinstance(command, click.Group) and word[0].islower():
            following = command.get_command(context, word)
            if following is None and isinstance(command, JournalGroup):
                return None
            if following is None:
                return f"there is no command {word!r} in {span!r}"
            command = following
    return None


def headings(page: Path) -> set[str]:
    """The places of a page that links can lead to."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", EVERYWHERE)
def test_links_lead_to_headings(page: str) -> None:
    here = ROOT / page
    found = [(here.parent / link if link else here, place) for link, place in ANCHOR.findall(text_of(page))]
    assert [place for target, place in found if target.is_file() and place not in headings(target)] == []


@pytest.mark.parametrize("page", EVERYWHERE)
def test_what_pages_name_is_there(page: str) -> None:
    named = list(spans(page))
    complaints = [span for span in named if missing_path(span) or unknown_target(span)]
    modules = [*filter(MODULE.fullmatch, named), *OBJECT.findall(text_of(page))]
    complaints += [name for name in modules if unknown_name(name)]
    complaints += [complaint for span in named if (complaint := unknown_command(span)) is not None]
    assert not complaints


def test_what_is_not_there_is_found() -> None:
    for here, gone in (("tests/kit", "tests/kitt"), ("src/unbroken/errors.py", "src/unbroken/error.py")):
        assert not missing_path(here) and missing_path(gone)
    for here in ("unbroken.testing", "unbroken.testing.verdict", "unbroken.errors.UnbrokenError", "unbroken_lab.chaos"):
        assert not unknown_name(here)
    for gone in ("unbroken.bench", "unbroken.errors.Gone", "unbroken_lab.chaos.nothing"):
        assert unknown_name(gone)
    assert not unknown_target("make demo") and unknown_target("make dmo")
    for here in ("unbroken run FLOW --dir", "unbroken journal node-1", "unbroken bench NAME", "unbroken ui | less -r"):
        assert unknown_command(here) is None
    for gone in ("unbroken rum", "unbroken run --sideways", "unbroken simulate nothing"):
        assert unknown_command(gone) is not None
