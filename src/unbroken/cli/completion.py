"""Completion in the shell: ``unbroken completion``, and the names of local runs, their nodes and shards.

A shell asks with every press of the key, so what is needed comes from the directories of the runs, and nothing large is
imported for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

RUNS = Path(".unbroken")
"""Where local runs are, unless they are told otherwise."""

NOT_NODES = frozenset({"zookeeper"})
"""Logs of a run that are not those of nodes."""

SHELLS = ("bash", "zsh", "fish")
PROGRAM, VARIABLE = "unbroken", "_UNBROKEN_COMPLETE"

WHERE = {
    "bash": 'eval "$(unbroken completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(unbroken completion zsh)"     # in ~/.zshrc, after compinit',
    "fish": "unbroken completion fish | source     # in ~/.config/fish/config.fish",
}
"""The line that makes a shell know the commands from its next start on."""


def complete_flow(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the runs below ./.unbroken."""
    return _items((path.name for path in _runs({})), incomplete, "a local run")


def complete_flow_or_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of runs, and whatever files the shell knows."""
    return [*complete_flow(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the nodes of the run that is meant, or of all local ones."""
    names = (
        log.stem for path in _runs(ctx.params) for log in (path / "logs").glob("*.log") if log.stem not in NOT_NODES
    )
    return _items(names, incomplete, "a node")


def complete_shard(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shards of the run that is meant, or of all local ones."""
    shards: list[str] = []
    for path in _runs(ctx.params):
        segments = _segments(path / "shape.json")
        shards += ["ingress.0", *(f"{name}.{index}" for name, count in segments.items() for index in range(count))]
    return _items(shards, incomplete, "a shard")


def script(shell: str, program: click.Command) -> str:
    """What a shell has to run to know the commands."""
    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"
    return kind(program, {}, PROGRAM, VARIABLE).source()


def _runs(params: dict[str, Any]) -> list[Path]:
    """The directories of the runs that a half-written command line may be about."""
    directory, name = params.get("directory"), params.get("flow_name")
    if directory is not None:
        return [Path(directory)]
    found = sorted(path.parent for path in RUNS.glob("*/run.json"))
    return [path for path in found if name is None or path.name == name]


def _segments(path: Path) -> Mapping[str, int]:
    """The segments in the file of a program, with their shards."""
    # Loaded when needed: it takes 0.3 s, which only shards are worth to a shell that waits.
    from unbroken.codecs.codec import Undecodable
    from unbroken.flow.program import PROGRAM as WRITTEN_PROGRAM

    try:
        return WRITTEN_PROGRAM.decode(path.read_bytes()).topology.segments
    except (OSError, Undecodable):
        return {}


def _items(names: Iterable[str], incomplete: str, what: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=what) for name in sorted(set(names)) if name.startswith(incomplete)]
