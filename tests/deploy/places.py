"""Where the files of the deployments are, and what of the product they have to agree with."""

from __future__ import annotations

from typing import Any

import click
import yaml

from kit.places import ROOT
from unbroken.cli import cli

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"

NODE_PORT, METRICS_PORT = 9401, 9400
"""The same in all deployments, so that firewalls and dashboards need to know two numbers."""


def options_of(command: str) -> set[str]:
    """The options of a command of ours."""
    found = cli.commands[command]
    return {option for parameter in found.params if isinstance(parameter, click.Option) for option in parameter.opts}


def used_options(words: list[str]) -> list[str]:
    """The options among the words of a command line."""
    return [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]


def read(name: str) -> dict[str, Any]:
    """A manifest for Kubernetes."""
    loaded: dict[str, Any] = yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text())
    return loaded
