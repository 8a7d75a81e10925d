"""The commands in Markdown: what each does, its options and its examples, as ``--help`` tells them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from unbroken.cli import cli
from unbroken.cli.command import Command, CommandGroup
from unbroken_lab.docsgen.marks import table


def commands() -> str:
    """Every command, by what a person wants to do."""
    parts: list[str] = []
    for title, names in cli.sections.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _told(cli.commands[name], f"unbroken {name}", 3)
    return "\n" + "\n".join(parts) + "\n"


def _told(command: click.Command, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield f"`{_usage(command, name)}`\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    options = [_option(option) for option in command.params if isinstance(option, click.Option) and _own(option)]
    if options:
        yield table(("option", "meaning"), options)
    examples = command.examples if isinstance(command, Command | CommandGroup) else ()
    if examples:
        yield table(("example", "what for"), [(f"`{line}`", purpose) for line, purpose in examples])
    if isinstance(command, click.Group):
        for under, found in command.commands.items():
            yield from _told(found, f"{name} {under}", level + 1)


def _usage(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name)
    return " ".join([name, *command.collect_usage_pieces(context)])


def _own(option: click.Option) -> bool:
    """Whether an option has to be told here: those of the commands on runs are told once."""
    told = (option.help or "").startswith(("Directory of a local run", "ZooKeeper of a flow", "The token of a flow"))
    plain = option.opts == ["--json"] and option.help == "Print one JSON object."
    return not option.hidden and not told and not plain


def _option(option: click.Option) -> tuple[str, str]:
    written, meaning = option.get_help_record(click.Context(click.Command("unbroken"))) or ("", "")
    return f"`{written}`", meaning
