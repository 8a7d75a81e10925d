"""What makes a command of Unbroken: help that shows examples, errors that become messages and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from unbroken.cli.shared import EXIT_INTERRUPTED, EXIT_REFUSED, errors, exit_code
from unbroken.errors import FlowError, UnbrokenError
from unbroken.security.secret import masked

Example = tuple[str, str]
"""A command line, and what it is good for."""

SENTENCE = 1_000
"""Characters of a command's first sentence in the list of commands: all of it, on several lines if need be."""

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command whose help ends with examples, and which says what went wrong in one way.

    Unbroken's own errors become a message, or with ``--json`` one object on stdout; anything else is a bug and keeps
    its traceback. How it exits is told in ``unbroken.cli.shared``.
    """

    def __init__(self, *args: Any, examples: Sequence[Example] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UnbrokenError as error:
            tell(error, bool(ctx.params.get("as_json")))
            ctx.exit(exit_code(error))
        except click.Abort:
            errors.print("nothing was done")
            ctx.exit(EXIT_REFUSED)
        except KeyboardInterrupt:
            errors.print("interrupted")
            ctx.exit(EXIT_INTERRUPTED)


class CommandGroup(click.Group):
    """A group of such commands, shown in sections: what a person wants to do, and the commands for it.

    ``elsewhere`` names commands of other distributions, and the distribution to install for each.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        examples: Sequence[Example] = (),
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.elsewhere = dict(elsewhere or {})
        self.sections: dict[str, tuple[str, ...]] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        distribution = self.elsewhere.get(args[0])
        if distribution is not None and args[0] not in self.commands:
            ctx.fail(f"{args[0]} is a command of {distribution}, which is not installed: pip install {distribution}")
        return super().resolve_command(ctx, args)

    def fill(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Add commands, in the order in which they are shown; those of a section that exists come after its own."""
        for title, commands in sections.items():
            names = tuple(str(command.name) for command in commands)
            self.sections[title] = (*self.sections.get(title, ()), *names)
            for command in commands:
                self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        width = max(len(name) for name in self.commands)
        shown = {name for names in self.sections.values() for name in names}
        rest = tuple(name for name in self.list_commands(ctx) if name not in shown)
        for title, names in {**self.sections, "Others": rest}.items():
            visible = [self.commands[name] for name in names if not self.commands[name].hidden]
            rows = [(f"{command.name:{width}}", command.get_short_help_str(SENTENCE)) for command in visible]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self.examples)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UnbrokenError as error:
            tell(error, False)
            ctx.exit(exit_code(error))


def command(name: str | None = None, *, examples: Sequence[Example] = (), **kwargs: Any) -> Callable[[F], Command]:
    """``click.command`` for a command with examples."""
    return click.command(name, cls=Command, examples=examples, **kwargs)


def group(name: str | None = None, *, examples: Sequence[Example] = (), **kwargs: Any) -> Callable[[F], CommandGroup]:
    """``click.group`` for a group of them."""
    return click.group(name, cls=CommandGroup, examples=examples, **kwargs)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[Example]) -> None:
    """What each line is good for stands beside it where there is room, else below.

    Lines are never wrapped: they are there to be copied.
    """
    if not examples:
        return
    with formatter.section("Examples"):
        indent = " " * formatter.current_indent
        widest = max(len(line) for line, _ in examples)
        beside = all(formatter.current_indent + widest + 2 + len(why) <= formatter.width for _, why in examples)
        for line, purpose in examples:
            formatter.write(f"{indent}{line:{widest}}  {purpose}\n" if beside else f"{indent}{line}\n")
            if not beside:
                formatter.write_text(f"    {purpose}")


def tell(error: UnbrokenError, as_json: bool) -> None:
    """Report what went wrong, without secrets: to a person, or as one JSON object to a program."""
    if as_json:
        problems = error.problems if isinstance(error, FlowError) else []
        found = [{"where": p.where, "what": p.what, "remedy": p.remedy} for p in problems]
        more = {"problems": found} if found else {}
        click.echo(masked(json.dumps({"ok": False, "error": str(error), "exit_code": exit_code(error), **more})))
    elif isinstance(error, FlowError):
        for problem in error.problems:
            errors.print(f"[bold red]refused[/] {problem.where}", highlight=False, soft_wrap=True)
            errors.print(masked(f"  {problem.what}"), highlight=False, markup=False, soft_wrap=True)
            errors.print(f"  -> {problem.remedy}", highlight=False, markup=False, soft_wrap=True)
    else:
        word = "refused" if exit_code(error) == EXIT_REFUSED else "error"
        errors.print(f"[bold red]{word}[/]", end=" ")
        # The terminal breaks lines that are too long: a path that is broken here could not be copied.
        errors.print(masked(str(error)), highlight=False, markup=False, soft_wrap=True)
