"""Running the shell lines of a page without what they would start.

Bash runs each block in an empty directory, with its own quoting, variables and redirections. Harmless commands are the
real ones. ``unbroken`` and everything that would change the machine are stand-ins that note down what they are called
with; the tests then hold that against the real commands. Other commands are not found, so no block can do harm.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import click

from docs.pages import ROOT, Block
from unbroken.cli import cli

REAL = ("cat", "cp", "head", "ls", "mkdir", "mv", "printf", "rm", "sort", "tail", "touch", "wc", "seq", "sed", "jq")
NOTED = (
    *("unbroken", "make", "pip", "curl", "kill", "sudo", "systemctl", "journalctl", "docker", "podman", "kubectl"),
    *("spark-submit", "pytest", "uv", "git", "ssh", "scp", "promtool", "helm", "kind", "useradd", "install"),
)
PATHS = ("/metrics", "/ready", "/live")
"""Where a node answers monitoring systems."""

_STUB = '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" >> "$NOTES"; printf "\\n" >> "$NOTES"\n'
_PYTHON = """#!/bin/bash
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin"; touch "$3/bin/activate"; exit; fi
exec {python} "$@"
"""
_OUTSIDE = re.compile(r">\s*(?!/dev/null)[/~]")


def commands(block: Block, given: Sequence[Block], directory: Path) -> list[list[str]]:
    """What the stand-ins were called with when the block ran; ``given`` are the page's own blocks before it."""
    lines = "\n".join([*(before.text for before in given), code_of(block)])
    assert not _OUTSIDE.search(lines), f"{block.where} would write outside of its directory"
    bin_dir, notes = directory / ".bin", directory / ".notes"
    _prepare(bin_dir)
    notes.write_text("")
    environment = {"PATH": str(bin_dir), "NOTES": str(notes), "HOME": str(directory), "LC_ALL": "C.UTF-8"}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'lab' / 'src'}"
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", lines],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{block.where}: {done.stderr}"
    return [record.removesuffix("\0").split("\0") for record in notes.read_text().split("\n") if record]


def code_of(block: Block) -> str:
    """The lines to type: all of a ``sh`` block, those behind a prompt of a ``console`` block."""
    if block.language == "sh":
        return block.text
    typed = re.findall(r"^\$ (.*(?:\\\n.*)*)$", block.text, re.MULTILINE)
    assert typed, f"{block.where} has no line that begins with '$ '"
    return "\n".join(typed)


def _prepare(bin_dir: Path) -> None:
    bin_dir.mkdir(exist_ok=True)
    for name in NOTED:
        stub = bin_dir / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(_STUB)
        stub.chmod(0o755)
    for name in REAL:
        real = shutil.which(name)
        if real is not None and not (bin_dir / name).exists():
            (bin_dir / name).symlink_to(real)
    (bin_dir.parent / ".ci").mkdir(exist_ok=True)
    (bin_dir.parent / ".ci" / "run").write_text("")
    (bin_dir.parent / ".ci" / "run").chmod(0o755)
    for name in ("python", "python3"):
        stub = bin_dir / name
        stub.write_text(_PYTHON.format(python=sys.executable))
        stub.chmod(0o755)


def complaint(command: Sequence[str]) -> str | None:
    """What is wrong with a command that a page tells its readers to type; None if nothing is."""
    name, arguments = command[0], list(command[1:])
    match name:
        case "unbroken":
            return _unbroken(arguments)
        case "make":
            unknown = [word for word in arguments if "=" not in word and word not in targets()]
            return f"the Makefile has no target {', '.join(unknown)}" if unknown else None
        case "pip":
            return _pip(arguments)
        case "curl":
            return _curl(arguments)
        case "kubectl" | "docker" | "podman" | "cp" | "install" | "promtool" | "systemctl" | "sudo":
            named = [word for word in arguments if word.startswith("deploy/")]
            missing = [word for word in named if not (ROOT / word).exists()]
            return f"there is no {', '.join(missing)}" if missing else None
    return None


def _unbroken(arguments: list[str]) -> str | None:
    """Let Click take the arguments apart as it would, up to the function that does the work."""
    command: click.Command = cli
    parent: click.Context | None = None
    name: str | None = "unbroken"
    kept = dict(os.environ)
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=parent)
            if not isinstance(command, click.Group):
                return None
            rest = [*context._protected_args, *context.args]
            name, found, arguments = command.resolve_command(context, rest)
            if found is None:
                return f"there is no command {rest[0]!r}"
            command, parent = found, context
    except click.exceptions.Exit:
        return None  # --help and --version
    except click.ClickException as error:
        return f"unbroken {' '.join(arguments)}: {error.format_message()}"
    finally:
        os.environ.clear()
        os.environ.update(kept)


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _pip(arguments: list[str]) -> str | None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in arguments:
        for group in re.findall(r"^(?:unbroken|\.)\[([^]]*)\]", word):
            unknown = [extra for extra in group.split(",") if extra not in extras]
            if unknown:
                return f"there is no extra {', '.join(unknown)}"
    return None


def _curl(arguments: list[str]) -> str | None:
    urls = [word for word in arguments if word.startswith("http")]
    for url in urls:
        path = urlsplit(url).path
        if path not in PATHS and not path.startswith("/push/"):
            return f"no node answers at {path}"
    return None if urls else "no URL is asked"
