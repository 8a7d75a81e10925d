"""Every code block of the documentation is run, or read by what it is written for."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs import shell_blocks, yaml_blocks
from docs.pages import RUN, SHOWN, Block, all_blocks, blocks, pages, pages_with, parse, write_files
from docs.python_blocks import run_python
from unbroken.cli import cli
from unbroken.flow.plan import build_topology

MOST_NOT_RUN = 8
"""Blocks that nobody runs rot; there are to be few of them."""

ALL = all_blocks()
DOCKER = re.compile(r"(FROM|RUN|COPY|WORKDIR|ENV|USER|ENTRYPOINT|CMD|EXPOSE|ARG|LABEL|VOLUME|HEALTHCHECK|#)")


def each(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", all_blocks(*languages), ids=lambda block: block.where)


def test_blocks_are_found_in_all_places() -> None:
    text = "\n".join(
        [
            "<!-- given: python\nx = 1\n-->",
            "```python\ny = x\n```",
            "- in a list\n\n  ```sh\n  unbroken --help\n  ```",
            "<!-- not run: it takes\na day -->\n\n```sh\nmake day\n```",
            "<!-- not run: not here -->\n\nA sentence between.\n\n```text\nx\n```",
        ]
    )
    found = list(parse("page.md", text))
    assert [(block.line, block.language, block.text, block.given, block.not_run) for block in found] == [
        (2, "python", "x = 1\n", True, None),
        (5, "python", "y = x\n", False, None),
        (10, "sh", "unbroken --help\n", False, None),
        (16, "sh", "make day\n", False, "it takes a day"),
        (23, "text", "x\n", False, None),
    ]


@pytest.mark.parametrize("page", pages())
def test_every_block_says_what_it_is(page: str) -> None:
    known = RUN | SHOWN
    odd = [block.where for block in blocks(page) if block.language not in known and not block.given]
    assert not odd, f"write one of {sorted(known)} behind the three marks"


@pytest.mark.parametrize("block", [block for block in ALL if block.not_run is not None], ids=lambda b: b.where)
def test_blocks_that_are_not_run_say_why(block: Block) -> None:
    print(f"{block.where} is not run: {block.not_run}")
    assert block.not_run is not None and len(block.not_run.split()) >= 3


def test_few_blocks_are_not_run() -> None:
    left_out = [f"{block.where}: {block.not_run}" for block in ALL if block.not_run is not None]
    print(*left_out, sep="\n")
    assert len(left_out) <= MOST_NOT_RUN


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_runs_and_flows_have_a_shape(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flow in run_python(page, monkeypatch, tmp_path):
        build_topology(flow)


@pytest.mark.parametrize("page", pages_with("yaml"))
def test_networks_load(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for flow in yaml_blocks.networks(page, tmp_path):
        build_topology(flow)


@each("yaml")
def test_yaml_is_for_something(block: Block) -> None:
    assert yaml_blocks.complaint(block) is None


@pytest.mark.parametrize("page", pages_with("sh", "console"))
def test_commands_are_real(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    complaints: list[str] = []
    shell = [block for block in blocks(page) if block.language in ("sh", "console") and block.not_run is None]
    for number, block in enumerate(shell):
        if block.given:
            continue
        given = [before for before in shell[:number] if before.given]
        found = [shell_blocks.complaint(command) for command in shell_blocks.commands(block, given, tmp_path)]
        complaints += [f"{block.where}: {complaint}" for complaint in found if complaint is not None]
    assert not complaints


CHEAP = (
    ("simulate", "mttf"),
    ("simulate", "faults", "--first"),
    ("bench", "paper", "--list"),
    ("--help",),
    ("--version",),
)
"""Commands that end by themselves within seconds and change nothing."""


def _shell_text() -> str:
    """All that is to be typed, with continued lines made one."""
    return "\n".join(block.text for block in all_blocks("sh", "console")).replace("\\\n", " ")


def cheap() -> list[str]:
    lines = re.findall(r"^(?:\$ )?unbroken (.*)$", _shell_text(), re.MULTILINE)
    words = {tuple(shlex.split(line, comments=True)) for line in lines}
    return sorted(" ".join(line) for line in words if any(line[: len(start)] == start for start in CHEAP))


@pytest.mark.parametrize("line", cheap())
def test_cheap_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, line.split())
    assert done.exit_code == 0, done.output
    assert done.output


@each("json")
def test_json_is_json(block: Block) -> None:
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@each("ini")
def test_ini_can_be_read(block: Block) -> None:
    reader = configparser.RawConfigParser(strict=False)
    reader.read_string(block.text)
    assert reader.sections()


@each("toml")
def test_toml_can_be_read(block: Block) -> None:
    assert tomllib.loads(block.text)


@each("dockerfile")
def test_container_files_have_instructions(block: Block) -> None:
    lines = re.sub(r"\\\n", " ", block.text).splitlines()
    assert all(DOCKER.match(line) for line in lines if line.strip())
