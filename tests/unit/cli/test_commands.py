"""All commands: help that teaches, examples that can be copied, JSON, exit codes, and a quick start."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import unbroken.cli
from unbroken.cli import cli
from unbroken.cli.command import Command, CommandGroup, Example, command
from unbroken.cli.shared import (
    EXIT_DEADLINE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    exit_code,
)
from unbroken.errors import DeadlinePassed, FlowError, Problem, Refused, UnbrokenError, Unreachable
from unit.cli.asking import ask, facts

SILENT = {"node", "completion"}
"""Commands that print no result: a log, or a script for a shell."""

OTHERS = {"cd", "jq", "dot", "echo"}
"""Programs in examples that are not Unbroken."""


def commands(group: click.Group, above: str = "unbroken") -> Iterator[tuple[str, click.Command]]:
    for name, found in group.commands.items():
        if isinstance(found, click.Group):
            yield from commands(found, f"{above} {name}")
        yield f"{above} {name}", found


EVERY = dict(commands(cli))
LEAVES = {name: found for name, found in EVERY.items() if not isinstance(found, click.Group)}
every_command = pytest.mark.parametrize("name", LEAVES)


@every_command
def test_every_command_tells_what_it_does_and_shows_it(name: str) -> None:
    found = LEAVES[name]
    assert isinstance(found, Command) and found.examples, "declare it with unbroken.cli.command.command(examples=...)"
    first = (found.help or "").partition("\n\n")[0]
    assert first.endswith((".", "?")) and first[0].isupper()
    shown = ask(*name.split()[1:], "--help")
    assert shown.exit_code == 0
    for line, purpose in found.examples:
        assert f"  {line}\n" in shown.output or f"  {line}  " in shown.output, "an example is broken into lines"
        assert purpose.split()[0] in shown.output


@every_command
def test_every_option_is_explained(name: str) -> None:
    for option in LEAVES[name].params:
        if isinstance(option, click.Option):
            told = option.help or option.show_default or option.metavar
            assert told, f"{name} {option.opts[0]}"


@every_command
def test_whatever_prints_something_prints_json(name: str) -> None:
    options = {word for option in LEAVES[name].params for word in option.opts}
    assert "--json" in options or name.split()[-1] in SILENT


def lines(example: Example) -> Iterator[list[str]]:
    """The commands in an example, which may be a short shell script."""
    words: list[str] = []
    for word in [*shlex.split(example[0], comments=True), ";"]:
        if word in (";", "&&", "||", "|", ">"):
            if words and words[0] not in OTHERS:
                yield words
            words = [">"] if word == ">" else []
        else:
            words.append(word)


@pytest.mark.parametrize("name", ["unbroken", *EVERY])
def test_examples_can_be_copied(name: str) -> None:
    """Every example parses: its command and its options exist, and values are of the right kind."""
    group = cli if name == "unbroken" else EVERY[name]
    assert isinstance(group, Command | CommandGroup)
    for example in group.examples:
        for words in lines(example):
            if words[0] == ">":
                continue
            assert words[0] == "unbroken", words
            found: click.Command = cli
            rest = words[1:]
            while isinstance(found, click.Group):
                _, under, rest = found.resolve_command(click.Context(found), rest)
                assert under is not None, words
                found = under
            found.make_context("unbroken", rest)


def test_commands_are_grouped_by_what_a_person_wants() -> None:
    shown = ask("--help").output
    titles = [line.rstrip(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *cli.sections, "Examples"]
    assert sorted(name for names in cli.sections.values() for name in names) == sorted(cli.commands)
    assert "..." not in shown.partition("\n")[2], "a sentence is cut off"


def test_a_command_that_nobody_has_put_into_a_section_is_shown_all_the_same() -> None:
    group = CommandGroup("g")
    group.fill({"First": [click.Command("one", help="One.")]})
    group.add_command(click.Command("two", help="Two."))
    shown = group.get_help(click.Context(group))
    assert shown.index("First:") < shown.index("one") < shown.index("Others:") < shown.index("two")


def test_a_command_of_a_distribution_that_is_not_installed_says_what_to_install() -> None:
    group = CommandGroup("g", elsewhere={"demo": "unbroken-lab"})
    absent = CliRunner().invoke(group, ["demo", "--seconds", "40"])
    assert absent.exit_code == 2 and "pip install unbroken-lab" in absent.stderr
    group.add_command(click.Command("demo", callback=lambda: click.echo("shown")))
    assert CliRunner().invoke(group, ["demo"]).stdout == "shown\n"


def test_commands_that_cannot_be_loaded_leave_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ImportError("no module named matplotlib")

    entry = SimpleNamespace(value="other:COMMANDS", load=broken)
    monkeypatch.setattr(unbroken.cli, "entry_points", lambda group: [entry])
    before = dict(cli.commands)
    unbroken.cli.add_commands_of_others()
    assert cli.commands == before and "status" in before


def test_examples_stand_beside_their_purpose_if_there_is_room() -> None:
    @command("tried", examples=[("unbroken tried", "to try it"), ("unbroken tried --again", "once more")])
    def tried() -> None:
        """Try it."""

    wide = tried.get_help(click.Context(tried, terminal_width=80))
    assert "  unbroken tried          to try it\n  unbroken tried --again  once more" in wide
    narrow = tried.get_help(click.Context(tried, terminal_width=30))
    assert "  unbroken tried\n      to try it\n  unbroken tried --again\n      once more" in narrow


# --- exit codes -------------------------------------------------------------------------------------------

PROBLEM = Problem("flow.py:3", "it has no sink", "declare one")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnbrokenError("it broke"), EXIT_FAILED),
        (FlowError([PROBLEM]), EXIT_REFUSED),
        (Refused("not while it is paused"), EXIT_REFUSED),
        (Unreachable("nobody answers"), EXIT_UNREACHABLE),
        (DeadlinePassed("waited 5 s"), EXIT_DEADLINE),
        (KeyboardInterrupt(), EXIT_INTERRUPTED),
        (click.Abort(), EXIT_REFUSED),
        (click.UsageError("no such option"), EXIT_REFUSED),
    ],
)
def test_how_a_command_ends(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @command("failing")
    @click.option("--json", "as_json", is_flag=True)
    def failing(as_json: bool) -> None:
        """Fail."""
        raise error

    monkeypatch.setitem(cli.commands, "failing", failing)
    told = ask("failing")
    assert told.exit_code == code
    assert not told.stdout and told.stderr
    if isinstance(error, UnbrokenError):
        assert exit_code(error) == code
        found = ask("failing", "--json")
        assert found.exit_code == code and not found.stderr
        value = json.loads(found.stdout)
        assert value["ok"] is False and value["exit_code"] == code and value["error"] == str(error)
        assert ("problems" in value) == isinstance(error, FlowError)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @command("wrong")
    def wrong() -> None:
        """Go wrong."""
        raise ZeroDivisionError

    monkeypatch.setitem(cli.commands, "wrong", wrong)
    assert isinstance(ask("wrong").exception, ZeroDivisionError)


def test_experiments_can_be_listed_for_programs() -> None:
    found = facts("bench", "list")["experiments"]
    assert found and all(set(about) == {"title", "source", "parameters"} for about in found.values())


# --- quick ------------------------------------------------------------------------------------------------

LARGE = ("pyspark", "pyarrow", "kazoo", "numpy", "pandas", "pydantic", "matplotlib", "uvicorn")


def test_help_and_completion_import_nothing_large() -> None:
    script = f"""
import sys
from click.testing import CliRunner
from unbroken.cli import cli
CliRunner().invoke(cli, ["--help"])
CliRunner().invoke(cli, ["completion", "fish"])
asked = {{"_UNBROKEN_COMPLETE": "bash_complete", "COMP_WORDS": "unbroken drain ", "COMP_CWORD": "2"}}
CliRunner().invoke(cli, [], prog_name="unbroken", env=asked)
print([name for name in {LARGE!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
