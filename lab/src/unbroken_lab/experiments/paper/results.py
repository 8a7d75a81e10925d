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

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.paper.experiment import AGREES, DIFFERS, ERROR, Rows, number
from unbroken_lab.experiments.paper.records import Kept, read_csv, read_kept
from unbroken_lab.experiments.paper.registry import names

RECOVERY_TABLE = "recovery-table"
"""The experiment whose rows are also shown as a table: failure by strategy."""

PEERS = "peers"
"""What `unbroken bench peers` leaves; it is of no paper, and closes the page."""

FILES = (".png", ".csv", ".json")
INTRODUCTION = """# Results: the papers' experiments on the real system

Each figure or table below was measured with real Spark, real processes and real faults by `unbroken bench paper NAME`,
the last one by `unbroken bench peers`; this page was written from the files they left by `unbroken bench results`.
The machines are smaller than those of the papers, and a micro-batch of Spark is slower than a tuple in their
prototypes: compare shapes and ratios, not seconds. What is smaller is said with each figure.
"""

HOW_TO_READ = (
    "The longest time without results is that of the whole run after the failure, which also has the time in which "
    'what was lost is built again. "Results again" and "as before" count from the failure, until the first result '
    'after it and until results come as quickly as before; "-" if they did not until the end of the run.\n'
)


@dataclass(frozen=True)
class Found:
    """An experiment that was run: what is said of it, its rows, and where its files are for a reader of the page."""

    kept: Kept
    rows: Rows
    place: str
    picture: bool


def write_page(directory: Path, page: Path) -> list[str]:
    """Write the page from the files in ``directory``; the experiments that are on it.

    Files that a reader of the page would not reach from beside it are copied to a directory of its name.
    """
    wanted = [*names(), PEERS]
    known = [name for name in wanted if (directory / f"{name}.json").exists()]
    if not known:
        raise UnbrokenError(
            f"{directory} holds no experiment; make one with `unbroken bench paper NAME --out {directory}`"
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    shown = _beside(directory, page, known)
    place = shown.relative_to(page.resolve().parent).as_posix()
    page.write_text(page_of({name: read_found(shown, name, place) for name in known}, wanted))
    return known


def read_found(directory: Path, name: str, place: str) -> Found:
    return Found(
        read_kept(directory, name), read_csv(directory / f"{name}.csv"), place, (directory / f"{name}.png").exists()
    )


def page_of(found: Mapping[str, Found], known: Sequence[str]) -> str:
    """The page: what was measured, in the order of ``known``, and what was not."""
    missing = [name for name in known if name not in found]
    parts = [INTRODUCTION, _contents([found[name] for name in known if name in found])]
    if RECOVERY_TABLE in found:
        parts.append(_recovery(found[RECOVERY_TABLE]))
    parts += [_section(found[name]) for name in known if name in found and name != RECOVERY_TABLE]
    if missing:
        listed = "\n".join(f"- `{name}`" for name in missing)
        parts.append(f"## Not yet run\n\n{listed}\n")
    return "\n".join(parts)


def recovery_markdown(rows: Rows) -> str:
    """What each kind of failure does with each strategy: a line for each failure and strategy."""
    head = (
        "failure",
        "strategy",
        "longest time without results",
        "before",
        "results again",
        "as before",
        "lost",
        "duplicated",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        if row.get(ERROR):
            lines.append(f"| {row['failure']} | {row['strategy']} | failed | | | | | |")
            continue
        times = [_seconds(number(row, name)) for name in ("gap_s", "gap_before_s", "resumed_s", "recovered_s")]
        counts = [_count(number(row, name)) for name in ("lost", "duplicated")]
        lines.append(f"| {' | '.join([str(row['failure']), str(row['strategy']), *times, *counts])} |")
    return "\n".join(lines) + f"\n\n{HOW_TO_READ}"


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
    parts += [_paper(kept), _findings(kept.findings)]
    if kept.failed:
        parts.append("Failed:\n\n" + "\n".join(f"- {_one_line(error)}" for error in kept.failed))
    parts.append(f"[Every row]({_path(one.place, kept.name)}.csv); again with `{_command(kept.name)}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _recovery(one: Found) -> str:
    """The section of the table of failures; its figures come from the rows of the runs."""
    return _section(one).replace("\n\n[Every row]", f"\n\n{recovery_markdown(one.rows)}\n[Every row]", 1)


def _paper(kept: Kept) -> str:
    if not kept.paper:
        return ""
    lines = ["| in the paper | |", "|---|---|"]
    for value in kept.paper:
        lines.append(f"| {value['what']} | {value['value']}{' (read off a figure)' if value.get('read_off') else ''} |")
    return "\n".join(lines)


def _findings(findings: Sequence[str]) -> str:
    """What was found here, then what of it is as in the paper, then what is not."""
    plain = [text for text in findings if not text.startswith((AGREES, DIFFERS))]
    parts = []
    for title, texts in (("Here", plain), (AGREES, _after(findings, AGREES)), (DIFFERS, _after(findings, DIFFERS))):
        if texts:
            listed = "\n".join(f"- {_sentence(_one_line(text))}" for text in texts)
            parts.append(f"**{title.strip(': ')}**\n\n{listed}")
    return "\n\n".join(parts)


def _after(findings: Sequence[str], mark: str) -> list[str]:
    return [text.removeprefix(mark) for text in findings if text.startswith(mark)]


def _command(name: str) -> str:
    return "unbroken bench peers" if name == PEERS else f"unbroken bench paper {name}"


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


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
