"""All experiments by name; a module is loaded only when one of its experiments is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from unbroken.errors import UnbrokenError
from unbroken_lab.experiments.experiment import Experiment, Value


@dataclass(frozen=True)
class ExperimentEntry:
    """Where an experiment is (module and class below this package), what it does, and how its command is used."""

    place: str
    about: str
    examples: tuple[tuple[str, str], ...] = ()


BENCHMARKS: Mapping[str, ExperimentEntry] = {
    "core": ExperimentEntry(
        "cost.core:Core",
        "Measure plain Structured Streaming, one replica and two replicas, on the same query and rows in one run.",
        (("unbroken bench core --seconds 60", "longer measurements of latency"),),
    ),
    "delivery": ExperimentEntry(
        "cost.delivery:DeliveryWays",
        "Compare input from all producers with input from one: bytes on the wire, and results when a node is killed.",
        (("unbroken bench delivery --rate 5000", "more rows per second"),),
    ),
    "page": ExperimentEntry(
        "cost.page:PageUpdates",
        """Measure what an update of the live page costs, on the server and in a browser, while nodes fail.

        The browser is a headless Chromium: UNBROKEN_CHROMIUM, or `chromium` on the PATH, driven by Playwright, which
        the development tools bring. Without them only the server is measured.""",
        (
            ("unbroken bench page --json", "200 simulated replicas in a headless Chromium"),
            ("unbroken bench page --replicas 1000 --updates 30", "more of them"),
        ),
    ),
    "recovery": ExperimentEntry(
        "recovery.recovery:RedundancyRecovery",
        "Kill a node of two with a warm standby: time until redundancy is restored, bytes moved, latency until then.",
        (("unbroken bench recovery --sizes 1,10", "two sizes of state, in megabytes"),),
    ),
    "piecemeal": ExperimentEntry(
        "recovery.piecemeal:Piecemeal",
        "Kill a node of four that hosts two of four shards: are results of the other two later until it is replaced?",
        (("unbroken bench piecemeal --size 50", "more state to be copied"),),
    ),
    "strategies": ExperimentEntry(
        "recovery.strategies:Strategies",
        "Compare the ways to keep a segment available: bytes for it, and time to continue when its node is killed.",
        (("unbroken bench strategies --strategies active,passive --intervals 1,4", "some of them"),),
    ),
    "ordering": ExperimentEntry(
        "ordering.ordering:Orderings",
        "Compare input ordered by pulses and by a leader: latency, bytes, and the loss of a leader or follower.",
        (("unbroken bench ordering --orderings pulse,leader-zookeeper --kills leader", "without Kafka"),),
    ),
    "consistency": ExperimentEntry(
        "consistency.consistency:ConsistencyExperiment",
        "Let an input be missing for a while: delay of new results, tentative ones, and time to correct them.",
        (("unbroken bench consistency --durations 5 --policies process/process", "one failure"),),
    ),
}
"""Unbroken itself."""

PAPERS: Mapping[str, ExperimentEntry] = {
    "recovery-table": ExperimentEntry(
        "paper.recovery_table:RecoveryTable", "Lose a node in four ways with each strategy (Hwang et al., 2003)."
    ),
    "flux-fig8": ExperimentEntry(
        "paper.flux:Pairs", "Monitor a network with partition pairs, cluster pairs and no replication (Flux, 2004)."
    ),
    "mib1": ExperimentEntry(
        "paper.rosinosky.mib:Chain", "Measure latency along a chain of segments (Rosinosky et al.)."
    ),
    "mib1-pulse": ExperimentEntry(
        "paper.rosinosky.mib:PulseSweep", "Measure latency by length of the pulse (Rosinosky et al.)."
    ),
    "mib2": ExperimentEntry("paper.rosinosky.mib:Shards", "Measure latency by number of shards (Rosinosky et al.)."),
    "mib3": ExperimentEntry(
        "paper.rosinosky.mib:Unbalanced", "Measure latency of inputs of unequal rates (Rosinosky et al.)."
    ),
    "faults": ExperimentEntry(
        "paper.rosinosky.faults:Faults", "Measure latency, processors and network around a fault (Rosinosky et al.)."
    ),
    "unordered": ExperimentEntry(
        "paper.rosinosky.unordered:Unordered", "Let replicas take input without an order (Rosinosky et al.)."
    ),
    "saas": ExperimentEntry(
        "paper.rosinosky.saas:Monitoring", "Monitor a cloud service through a fault (Rosinosky et al.)."
    ),
    "borealis-fig9": ExperimentEntry(
        "paper.borealis:Waiting", "Let new results wait longer or shorter for a missing input (Balazinska et al.)."
    ),
    "borealis-fig10": ExperimentEntry(
        "paper.borealis:NewInputPolicies", "Compare what is done with new input during a failure (Balazinska et al.)."
    ),
    "borealis-fig11": ExperimentEntry(
        "paper.borealis_states:ChainDepth", "Reconcile chains of segments after a failure (Balazinska et al.)."
    ),
    "borealis-fig12": ExperimentEntry(
        "paper.borealis_states:StateAndRate", "Reconcile by size of state and rate of rows (Balazinska et al.)."
    ),
    "borealis-table3": ExperimentEntry(
        "paper.borealis:BucketSize", "Measure latency by length of the bucket (Balazinska et al.)."
    ),
    "hwang-fig11": ExperimentEntry(
        "paper.hwang:Tradeoff", "Compare overhead and recovery time of the strategies (Hwang et al., 2003)."
    ),
}
"""The experiments of the papers."""

PEERS: Mapping[str, ExperimentEntry] = {
    "peers": ExperimentEntry(
        "peers.run:PeerComparison",
        """Compare Unbroken, Structured Streaming, a Spark cluster and Flink on the same events, each losing a process.

        Flink is installed below ~/.cache/unbroken/peers when it is first needed.""",
        (
            ("unbroken bench peers --systems unbroken,flink-tuned", "two of the systems"),
            ("unbroken bench peers --quick", "only see that they run"),
        ),
    ),
}
"""Other systems."""

EXPERIMENTS: Mapping[str, ExperimentEntry] = {**BENCHMARKS, **PAPERS, **PEERS}


def names() -> list[str]:
    return list(EXPERIMENTS)


def kind_of(name: str) -> type[Experiment]:
    """The class of an experiment."""
    entry = EXPERIMENTS.get(name)
    if entry is None:
        raise UnbrokenError(f"there is no experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    module, _, kind = entry.place.partition(":")
    return cast(type[Experiment], getattr(import_module(f"unbroken_lab.experiments.{module}"), kind))


def experiment_of(name: str, **settings: Value) -> Experiment:
    """An experiment, with its usual parameters or others."""
    return kind_of(name)(**settings)
