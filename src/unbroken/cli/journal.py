"""``unbroken journal``: get the journal of a node, and repeat one step by step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import CommandGroup
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, NamedRun, answer, on_run
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from unbroken.codecs.journal import JournalForm
    from unbroken.protocol.journal import JournalStep, Replayed

WRITE = "write"


class JournalGroup(CommandGroup):
    """Commands on journals; a word that names none of them is the node whose journal is to be written."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else [WRITE, *args])


@click.group(
    cls=JournalGroup,
    # Options before the name of a node are options of `write`.
    context_settings={"ignore_unknown_options": True},
    subcommand_metavar="NODE [FLOW] | replay FILE",
    examples=[
        ("unbroken journal node-1", "write what node-1 has handled to a file here"),
        ("unbroken journal replay node-1.journal", "repeat it, and show each step"),
    ],
)
def journal() -> None:
    """Write the journal of a node to a file, or repeat one.

    A journal has the events that a node has handled since it started, with their times, and no rows. NODE stands for
    `write NODE`.
    """


@journal.command(
    WRITE,
    examples=[
        ("unbroken journal write node-1", "write what node-1 has handled to a file here"),
        ("unbroken journal write node-1 --out a.journal", "the same, to another file"),
    ],
)
@click.argument("node")
@on_run
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="The file to write [default: NODE.journal]."
)
@AS_JSON
def write(node: str, run: NamedRun, out: Path | None, as_json: bool) -> None:
    """Write the journal of a running node to a file."""
    from unbroken.observe.status.reader import StatusReader

    place = run.place().named()
    with StatusReader(place.zookeeper, place.flow, place.token(), ANSWER_DEADLINE_S) as reader:
        reader.read()
        data = reader.journal(node)
    path = out or Path(f"{node}.journal")
    path.write_bytes(data)
    answer(as_json, f"the journal of {node} is in {path}", flow=place.flow, node=node, file=str(path))


@journal.command(
    examples=[
        ("unbroken journal replay node-1.journal", "repeat it, and show each step"),
        ("unbroken journal replay node-1.journal --json", "one line of JSON per step, for programs"),
    ]
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def replay(file: Path, as_json: bool) -> None:
    """Repeat the events of a journal, and show each step.

    Repeated, they lead to the same instructions in the same order; each step shows whether they did. The exit code is 1
    if one did not. A journal without its oldest steps is repeated from a checkpoint. Steps after a gap without one are
    shown and not compared.
    """
    from unbroken.codecs.journal import JournalForm
    from unbroken.node.journal import read_journal
    from unbroken.protocol.journal import replay as repeat

    try:
        kept = read_journal(file)
    except OSError as error:
        raise UnbrokenError(f"the file cannot be read: {file} ({error.strerror}). Name a journal.") from None
    form = JournalForm()
    parts = form.parts(kept)
    counts: Counter[str] = Counter()
    first_ms = next((step.at_ms for part in parts for step in part.steps), 0.0)
    following = 1
    for done in repeat(parts, form.mark):
        if missing := done.number - following:
            counts["missing"] += missing
            gap = {"missing": missing, "before": done.number, "repeated": done.repeated}
            click.echo(json.dumps(gap) if as_json else _gap(missing, done.repeated))
        following = done.number + 1
        counts["steps" if done.repeated else "shown_only"] += 1
        counts["different"] += done.same is False
        click.echo(json.dumps(_facts(done, form)) if as_json else _text(done, form, first_ms))
    numbers = {name: counts[name] for name in ("steps", "different", "missing", "shown_only")}
    different = counts["different"]
    text = f"{counts['steps']} steps of {kept.node} repeated, {different} with other instructions than on the node"
    text += f"; {counts['missing']} steps are missing" if counts["missing"] else ""
    text += f"; {counts['shown_only']} are shown and not compared" if counts["shown_only"] else ""
    answer(as_json, text, node=kept.node, reason=kept.reason, **numbers)
    if different:
        raise UnbrokenError(f"a replay differs: {file}. Repeat it with the version of unbroken that wrote it")


def _facts(done: Replayed, form: JournalForm) -> dict[str, object]:
    out = {"number": done.number, "at_ms": done.step.at_ms, "event": form.shown(done.step.event)}
    if not done.repeated:
        return {**out, "repeated": False}
    led = {"instructions": [form.shown(each) for each in done.instructions], "same": done.same}
    return {**out, **led, **({"failure": done.failure} if done.failure else {})}


def _text(done: Replayed, form: JournalForm, first_ms: float) -> str:
    sign = {True: "=", False: "DIFFERS", None: "?"}[done.same] if done.repeated else "not compared"
    head = _line(done.step, form, first_ms, str(done.number), sign)
    lines = [f"{'':>20}-> {form.line(each)}" for each in done.instructions]
    return "\n".join([head, *lines, *([f"{'':>20}!! {done.failure}"] if done.failure else [])])


def _gap(missing: int, repeated: bool) -> str:
    what = "a checkpoint follows, and the steps after it are repeated"
    return f"------ {missing} steps are missing; {what if repeated else 'those that follow are shown and not compared'}"


def _line(step: JournalStep, form: JournalForm, first_ms: float, number: str, sign: str) -> str:
    return f"{number:>6} {(step.at_ms - first_ms) / 1000:>10.3f} s {sign} {form.line(step.event)}"
