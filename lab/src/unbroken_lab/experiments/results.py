"""The page of results: every experiment that was measured, its picture, and the paper's numbers beside those found.

It is made from the files that experiments leave (``NAME.json``, ``NAME.png``, ``NAME.csv``) and from nothing else, so
that no number on it was typed in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import ERROR, Experiment, Rows
from unbroken_lab.experiments.records import Kept, read_csv, read_kept
from unbroken_lab.experiments.registry import experiment_of, names

AGREES = {True: "yes", False: "no", None: ""}
"""Whether paper and measurement agree; empty where the paper has nothing to compare with."""

EARLIER = "Benchmarks among these have figures of earlier runs on [the page of benchmarks](benchmarks.md)."
FILES = (".png", ".csv", ".json")
INTRODUCTION = """# Results: the papers' experiments on the real system

Each figure or table below was measured with real Spark, real processes and real faults by `unbroken bench NAME`;
this page was written from the files that were left, by `unbroken bench results`. The machines are smaller than those of
the papers, and a micro-batch of Spark is slower than a tuple in their prototypes: compare shapes and ratios, not
seconds. What is smaller is specified with each figure.

A table has what is claimed, what the paper has or this project aims at, what was measured here, and whether the two
agree; the last column follows from the figures by the rule in the code of the experiment. What explains the differences
is on a [page of its own](interpretation.md).
"""


@dataclass(frozen=True)
class Found:
    """An experiment that was run: what is said of it, its table, and where its files are for a reader of the page."""

    kept: Kept
    table: str
    place: str
    picture: bool


def write_page(directory: Path, page: Path) -> list[str]:
    """Write the page from the files in ``directory``; the experiments that are on it.

    Files that a reader of the page would not reach from beside it are copied to a directory of its name.
    """
    known = [name for name in names() if (directory / f"{name}.json").exists()]
    if not known:
        raise UnbrokenError(f"{directory} holds no experiment; make one with `unbroken bench NAME --out {directory}`")
    page.parent.mkdir(parents=True, exist_ok=True)
    shown = _beside(directory, page, known)
    place = shown.relative_to(page.resolve().parent).as_posix()
    page.write_text(page_of({name: read_found(shown, name, place) for name in known}, names()))
    return known


def read_found(directory: Path, name: str, place: str) -> Found:
    kept, rows = read_kept(directory, name), read_csv(directory / f"{name}.csv")
    table = figures_markdown(experiment_of(name, **kept.parameters), rows)
    return Found(kept, table, place, (directory / f"{name}.png").exists())


def page_of(found: Mapping[str, Found], known: Sequence[str]) -> str:
    """The page: what was measured, in the order of ``known``, and what was not."""
    missing = [name for name in known if name not in found]
    parts = [INTRODUCTION, _contents([found[name] for name in known if name in found])]
    parts += [_section(found[name]) for name in known if name in found]
    if missing:
        listed = "\n".join(f"- `{name}`" for name in missing)
        parts.append(f"## Not yet run\n\n{EARLIER}\n\n{listed}\n")
    return "\n".join(parts)


def figures_markdown(experiment: Experiment, rows: Rows) -> str:
    """The figures that an experiment shows as a table, a line for each row; empty if it shows none."""
    if not experiment.columns:
        return ""
    lines = [f"| {' | '.join(column.head for column in experiment.columns)} |", f"|{'---|' * len(experiment.columns)}"]
    for row in experiment.lines(rows):
        cells = [column.shown(row) for column in experiment.columns]
        if row.get(ERROR):
            cells = [*("" if cell == "-" else cell for cell in cells[:-1]), "failed"]
        lines.append(f"| {' | '.join(_one_line(cell) for cell in cells)} |")
    return "\n".join(lines) + (f"\n\n{experiment.caption}" if experiment.caption else "")


def _beside(directory: Path, page: Path, known: Sequence[str]) -> Path:
    """Where a reader of the page finds the files: where they are if that is below it, or else a copy."""
    source, home = directory.resolve(), page.resolve().parent
    if source.is_relative_to(home):
        return source
    target = home / page.stem
    target.mkdir(exist_ok=True)
    for name in known:
        for path in (source / f"{name}{ending}" for ending in FILES):
            if path.exists():
                shutil.copyfile(path, target / path.name)
    return target


def _contents(found: Sequence[Found]) -> str:
    lines = ["| experiment | source | measured | took |", "|---|---|---|---|"]
    for one in found:
        kept = one.kept
        when = f"{kept.measured}, {kept.machine}{', quick' if kept.quick else ''}"
        lines.append(f"| [{kept.title}](#{_anchor(kept)}) | {kept.source} | {when} | {_took(kept.took_s)} |")
    return "\n".join(lines) + "\n"


def _section(one: Found) -> str:
    kept = one.kept
    parts = [f"## {_heading(kept)}", f"*{kept.source}.* {_sentence(kept.scale)}"]
    if kept.quick:
        parts.append("**This was a quick run, which shows that the experiment runs; its figures mean nothing.**")
    if one.picture:
        parts.append(f"![{kept.title}]({_path(one.place, kept.name)}.png)")
    parts += [_parameters(kept), _paper(kept), _claims(kept.claims), one.table]
    if kept.failed:
        parts.append("Failed:\n\n" + "\n".join(f"- {_one_line(error)}" for error in kept.failed))
    parts.append(f"[Every row]({_path(one.place, kept.name)}.csv); again with `unbroken bench {kept.name}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(kept: Kept) -> str:
    """The values that were measured with, of an experiment that has parameters."""
    given = ", ".join(f"`{name}` {value}" for name, value in kept.parameters.items() if value is not None)
    return f"Parameters: {given}." if given else ""


def _paper(kept: Kept) -> str:
    if not kept.paper:
        return ""
    lines = ["| in the paper | |", "|---|---|"]
    for value in kept.paper:
        lines.append(f"| {value['what']} | {value['value']}{' (read off a figure)' if value.get('read_off') else ''} |")
    return "\n".join(lines)


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """The table of a report, in the order in which the experiment compares."""
    if not claims:
        return ""
    lines = ["| claim | paper | here | agrees |", "|---|---|---|---|"]
    for claim in claims:
        cells = (claim["claim"], claim["paper"], claim["here"], AGREES[claim["agrees"]])
        lines.append(f"| {' | '.join(_one_line(str(cell)) for cell in cells)} |")
    return "\n".join(lines)


def _heading(kept: Kept) -> str:
    return f"{kept.title} (`{kept.name}`)"


def _anchor(kept: Kept) -> str:
    """The address of a heading as GitHub makes it: lower case, blanks to dashes, other signs left out."""
    kept_signs = (sign for sign in _heading(kept).lower() if sign.isalnum() or sign in " -_")
    return "".join("-" if sign == " " else sign for sign in kept_signs)


def _path(place: str, name: str) -> str:
    return name if place in ("", os.curdir) else f"{place}/{name}"


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _took(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds else ""
