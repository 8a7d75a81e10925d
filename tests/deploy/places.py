"""Where the files of the deployments are, and what of the product they have to agree with."""

from __future__ import annotations

from pathlib import Path

import click

from unbroken.cli import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

NODE_PORT, METRICS_PORT = 9401, 9400
"""The same in all deployments, so that firewalls and dashboards need to know two numbers."""


def options_of(command: str) -> set[str]:
    """The options of a command of ours."""
    found = cli.commands[command]
    return {option for parameter in found.params if isinstance(parameter, click.Option) for option in parameter.opts}


def used_options(words: list[str]) -> list[str]:
    """The options among the words of a command line."""
    return [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]
