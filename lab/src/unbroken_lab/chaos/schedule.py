"""Which fault happens when: a seed becomes a list of timed faults. Pure: any run can be repeated by its seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from unbroken.testing.faults import EVERYTHING, ZOOKEEPER, Fault, Freeze, Kill, Restart, Wipe

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


@dataclass(frozen=True)
class Upgrade(Fault):
    """The flow is given other code with the same results: no fault, but it happens among them."""


Draw = Callable[[str, float, float], Fault]
"""Makes the fault of a kind, of a node, a length and a time; the kind takes what it needs of them."""


@dataclass(frozen=True)
class FaultKind:
    """What can be done to a running flow, and how often it is drawn.

    ``once``: it makes the flow start over in part or as a whole, and a second one would only make a run long.
    ``together``: it may hit two nodes at once, as it leaves both disks as they are; a shard may live on just these.
    """

    make: Draw
    weight: int
    longest_s: float = MOST_FREEZE_S
    once: bool = False
    together: bool = False


KINDS = (
    FaultKind(lambda node, _, at_s: Kill(node, after_s=at_s), 4, together=True),
    FaultKind(lambda node, _, at_s: Kill(node, jvm=True, after_s=at_s), 2, together=True),
    FaultKind(lambda node, for_s, at_s: Freeze(node, for_s, after_s=at_s), 4, together=True),
    FaultKind(lambda node, for_s, at_s: Freeze(node, for_s, jvm=True, after_s=at_s), 2, together=True),
    FaultKind(lambda node, _, at_s: Wipe(node, after_s=at_s), 2, once=True),
    FaultKind(lambda _, __, at_s: Kill(ZOOKEEPER, after_s=at_s), 2),
    FaultKind(lambda _, for_s, at_s: Freeze(ZOOKEEPER, for_s, after_s=at_s), 2, MOST_ZOOKEEPER_FREEZE_S),
    FaultKind(lambda _, __, at_s: Restart(EVERYTHING, after_s=at_s), 2, once=True),
)
TOGETHER_KINDS = tuple(kind for kind in KINDS if kind.together)


def due_s(fault: Fault) -> float:
    """When a fault of a schedule happens, in seconds after the first result."""
    assert fault.after_s is not None
    return fault.after_s


def with_care(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The same faults, with the flow whole before a disk is wiped, and whole again before anything else happens.

    A wiped disk takes one of two copies of a shard away for good. If the other copy were lost from sight in the same
    seconds, it might be the one that is dropped, and nothing would be left.
    """
    before: Sequence[Fault | None] = (None, *faults)
    pairs = zip(before, faults, strict=False)
    return tuple(replace(one, when_whole=any(isinstance(each, Wipe) for each in (last, one))) for last, one in pairs)


@dataclass(frozen=True)
class ChaosSchedule:
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

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.standbys} standbys: {'; '.join(str(fault) for fault in self.faults)}"


def node_names(standbys: int) -> tuple[str, ...]:
    nodes = [f"node-{number}" for number in range(1, NODES + 1)]
    return (*nodes, *(f"standby-{number}" for number in range(1, standbys + 1)))


def make_schedule(seed: int, length_s: float = LENGTH_S) -> ChaosSchedule:
    """The faults of a seed. The same seed and length give the same faults, on every machine."""
    # Text is hashed the same way everywhere, and neighbouring seeds have nothing in common.
    random = Random(f"unbroken chaos {seed}")
    standbys = random.randrange(2)
    names = node_names(standbys)
    faults: list[Fault] = []
    done: set[FaultKind] = set()
    at_s = random.uniform(*FIRST_S)
    while not faults or at_s < length_s:
        faults += _moment(random, round(at_s, 1), names, done)
        at_s += random.uniform(*random.choice((SOON_S, LATER_S)))
    upgrade_s = _upgrade_s(Random(f"unbroken chaos upgrade {seed}"))
    if upgrade_s is not None and upgrade_s < length_s:
        faults.append(Upgrade(after_s=upgrade_s))
    return ChaosSchedule(seed, standbys, with_care(sorted(faults, key=due_s)), length_s)


def _upgrade_s(random: Random) -> float | None:
    """When the flow is given other code: drawn apart, so that it says nothing about the other faults."""
    at_s = round(random.uniform(FIRST_S[0], LENGTH_S / 2), 1)
    return at_s if random.random() < UPGRADES else None


def _moment(random: Random, at_s: float, names: tuple[str, ...], done: set[FaultKind]) -> list[Fault]:
    """What happens at one moment: one fault, or two on different nodes; ``done`` are the kinds so far."""
    kinds = [kind for kind in KINDS if not kind.once or kind not in done]
    kind = random.choices(kinds, [kind.weight for kind in kinds])[0]
    targets = random.sample(names, 2)
    together = random.random() < TOGETHER and kind.together
    out = [_fault(random, at_s, kind, targets[0])]
    done.add(kind)
    if together:
        out.append(_fault(random, at_s, random.choice(TOGETHER_KINDS), targets[1]))
    return out


def _fault(random: Random, at_s: float, kind: FaultKind, target: str) -> Fault:
    return kind.make(target, round(random.uniform(1.0, kind.longest_s), 1), at_s)
