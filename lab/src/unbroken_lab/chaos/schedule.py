"""What goes wrong when: a seed becomes a list of timed faults. Pure, so that any run can be repeated by its seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

NODES = 3
"""Nodes of every run: with two replicas of each shard, the loss of any one of them leaves everything somewhere."""

LENGTH_S = 45.0
"""Length of the stretch in which faults begin. A killed node needs about 15 s to be back, so later faults of a
schedule hit a flow that recovers from earlier ones."""

FIRST_S = (2.0, 8.0)
SOON_S = (0.5, 6.0)
LATER_S = (10.0, 20.0)
"""Time to the first fault, and from one moment of faults to the next: into the recovery, or behind most of it."""

TOGETHER = 0.3
"""Chance that two nodes are hit at the same moment."""

UPGRADES = 0.4
"""Part of the schedules in which the flow is also given other code at some moment."""

MOST_FREEZE_S = 10.0
MOST_ZOOKEEPER_FREEZE_S = 30.0


class Kind(StrEnum):
    """What can be done to a running flow."""

    KILL_NODE = "kill-node"
    KILL_JVM = "kill-jvm"
    FREEZE_NODE = "freeze-node"
    FREEZE_JVM = "freeze-jvm"
    WIPE_NODE = "wipe-node"
    KILL_ZOOKEEPER = "kill-zookeeper"
    FREEZE_ZOOKEEPER = "freeze-zookeeper"
    RESTART_ALL = "restart-all"
    UPGRADE = "upgrade"


WEIGHTS = {
    Kind.KILL_NODE: 4,
    Kind.KILL_JVM: 2,
    Kind.FREEZE_NODE: 4,
    Kind.FREEZE_JVM: 2,
    Kind.WIPE_NODE: 2,
    Kind.KILL_ZOOKEEPER: 2,
    Kind.FREEZE_ZOOKEEPER: 2,
    Kind.RESTART_ALL: 2,
}
ONCE = (Kind.WIPE_NODE, Kind.RESTART_ALL)
"""Faults that make the flow start over in part or as a whole: a second one would only make a run long."""

AT_NODES = (Kind.KILL_NODE, Kind.KILL_JVM, Kind.FREEZE_NODE, Kind.FREEZE_JVM, Kind.WIPE_NODE)
AT_JVMS = (Kind.KILL_JVM, Kind.FREEZE_JVM)
TOGETHER_KINDS = (Kind.KILL_NODE, Kind.KILL_JVM, Kind.FREEZE_NODE, Kind.FREEZE_JVM)
"""What may hit two nodes at once: everything that leaves both disks as they are, as a shard may live on just these."""

FREEZES = (Kind.FREEZE_NODE, Kind.FREEZE_JVM, Kind.FREEZE_ZOOKEEPER)


@dataclass(frozen=True)
class Fault:
    """One thing that is done at ``at_s`` seconds after the first result.

    ``target`` names a node where the kind is about nodes; ``seconds`` is how long a freeze lasts.
    """

    at_s: float
    kind: Kind
    target: str = ""
    seconds: float = 0.0

    @property
    def alone(self) -> bool:
        """Whether the flow has to be whole before, and whole again before anything else happens.

        A wiped disk takes one of two copies of a shard away for good. If the other copy were lost from sight in the
        same seconds, it might be the one that is given up, and nothing would be left.
        """
        return self.kind is Kind.WIPE_NODE

    def __str__(self) -> str:
        target = f" {self.target}" if self.target else ""
        length = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at_s:.1f} s: {self.kind}{target}{length}"

    def to_json(self) -> dict[str, Any]:
        return {"at_s": self.at_s, "kind": str(self.kind), "target": self.target, "seconds": self.seconds}


@dataclass(frozen=True)
class Schedule:
    """The faults of one run, in the order of their times, and the number of idle nodes it has."""

    seed: int
    standbys: int
    faults: tuple[Fault, ...]
    length_s: float = LENGTH_S

    @property
    def command(self) -> str:
        """What runs this schedule again."""
        length = "" if self.length_s == LENGTH_S else f" --length {self.length_s:g}"
        return f"unbroken chaos --seeds {self.seed}{length}"

    @property
    def node_names(self) -> tuple[str, ...]:
        return node_names(self.standbys)

    def kinds(self) -> set[Kind]:
        return {fault.kind for fault in self.faults}

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.standbys} standbys: {'; '.join(str(fault) for fault in self.faults)}"


def node_names(standbys: int) -> tuple[str, ...]:
    nodes = [f"node-{number}" for number in range(1, NODES + 1)]
    return (*nodes, *(f"standby-{number}" for number in range(1, standbys + 1)))


def make_schedule(seed: int, length_s: float = LENGTH_S) -> Schedule:
    """The faults of a seed. The same seed and length give the same faults, on every machine."""
    # Text is hashed the same way everywhere, and neighbouring seeds have nothing in common.
    random = Random(f"unbroken chaos {seed}")
    standbys = random.randrange(2)
    names = node_names(standbys)
    faults: list[Fault] = []
    at_s = random.uniform(*FIRST_S)
    while not faults or at_s < length_s:
        done = {fault.kind for fault in faults}
        faults += _moment(random, round(at_s, 1), names, done)
        at_s += random.uniform(*random.choice((SOON_S, LATER_S)))
    upgrade_s = _upgrade_s(Random(f"unbroken chaos upgrade {seed}"))
    if upgrade_s is not None and upgrade_s < length_s:
        faults.append(Fault(upgrade_s, Kind.UPGRADE))
    return Schedule(seed, standbys, tuple(sorted(faults, key=lambda fault: fault.at_s)), length_s)


def _upgrade_s(random: Random) -> float | None:
    """When the flow is given other code: drawn apart, so that it says nothing about the other faults."""
    at_s = round(random.uniform(FIRST_S[0], LENGTH_S / 2), 1)
    return at_s if random.random() < UPGRADES else None


def _moment(random: Random, at_s: float, names: tuple[str, ...], done: set[Kind]) -> list[Fault]:
    """What happens at one moment: one fault, or two on different nodes."""
    kinds = [kind for kind in WEIGHTS if kind not in ONCE or kind not in done]
    kind = random.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
    targets = random.sample(names, 2)
    together = random.random() < TOGETHER and kind in TOGETHER_KINDS
    out = [_fault(random, at_s, kind, targets[0])]
    if together:
        out.append(_fault(random, at_s, random.choice(TOGETHER_KINDS), targets[1]))
    return out


def _fault(random: Random, at_s: float, kind: Kind, target: str) -> Fault:
    most = MOST_ZOOKEEPER_FREEZE_S if kind is Kind.FREEZE_ZOOKEEPER else MOST_FREEZE_S
    seconds = round(random.uniform(1.0, most), 1)
    return Fault(at_s, kind, target if kind in AT_NODES else "", seconds if kind in FREEZES else 0.0)
