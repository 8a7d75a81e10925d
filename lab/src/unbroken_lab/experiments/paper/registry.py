"""All experiments by name; a module is loaded only when one of its experiments is wanted."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.paper.experiment import Experiment

PLACES = {
    "recovery-table": ("recovery_table", "RecoveryTable"),
    "flux-fig8": ("flux", "Pairs"),
    "mib1": ("mib", "Chain"),
    "mib1-pulse": ("mib", "PulseSweep"),
    "mib2": ("mib", "Shards"),
    "mib3": ("mib", "Unbalanced"),
    "faults": ("faults", "Faults"),
    "unordered": ("unordered", "Unordered"),
    "saas": ("saas", "Monitoring"),
    "borealis-fig9": ("borealis", "Waiting"),
    "borealis-fig10": ("borealis", "Policies"),
    "borealis-fig11": ("borealis_states", "ChainDepth"),
    "borealis-fig12": ("borealis_states", "StateAndRate"),
    "borealis-table3": ("borealis", "BucketSize"),
    "hwang-fig11": ("hwang", "Tradeoff"),
}
"""Module and class of each experiment."""


def names() -> list[str]:
    return list(PLACES)


def experiment_of(name: str) -> Experiment:
    place = PLACES.get(name)
    if place is None:
        raise UnbrokenError(f"there is no experiment {name!r}; choose from {', '.join(PLACES)}")
    module, kind = place
    return cast(Experiment, getattr(import_module(f"unbroken_lab.experiments.paper.{module}"), kind)())
