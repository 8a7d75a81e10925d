"""What goes wrong in a simulated run: a seed becomes a list of timed faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from unbroken.protocol.values.ids import NodeId


class Kind(StrEnum):
    """What can happen to a simulated flow."""

    KILL = "kill"
    POWER = "power"
    WIPE = "wipe"
    BLACKOUT = "blackout"
    FREEZE = "freeze"
    SLOW = "slow"
    SLOW_LINK = "slow-link"
    CUT = "cut"
    PART = "part"
    PART_ONE_WAY = "part-one-way"
    ISOLATE = "isolate"
    BLIND = "blind"
    ZOOKEEPER = "zookeeper"
    SINK = "sink"
    QUERY = "query"
    STOP = "stop"
    DRAIN = "drain"
    RENEW = "renew"
    CLOCK = "clock"
    PUSH = "push"
    SOURCE = "source"
    LOSS = "loss"
    NODES = "nodes"
    PAUSE = "pause"
    TEAR = "tear"
    LOST_TAIL = "lost-tail"
    DAMAGE = "damage"
    TORN_WRITE = "torn-write"
    FAILED_WRITE = "failed-write"
    FULL_DISK = "full-disk"
    SLOW_DISK = "slow-disk"
    DAMAGED_UNIT = "damaged-unit"
    FAILED_START = "failed-start"
    STUCK_QUERY = "stuck-query"
    FULL_STORE = "full-store"
    STALLED_COPY = "stalled-copy"


WEIGHTS = {
    Kind.KILL: 5,
    Kind.POWER: 3,
    Kind.WIPE: 2,
    Kind.BLACKOUT: 1,
    Kind.FREEZE: 5,
    Kind.SLOW: 2,
    Kind.SLOW_LINK: 2,
    Kind.CUT: 4,
    Kind.PART: 4,
    Kind.PART_ONE_WAY: 3,
    Kind.ISOLATE: 2,
    Kind.BLIND: 2,
    Kind.ZOOKEEPER: 2,
    Kind.SINK: 2,
    Kind.QUERY: 3,
    Kind.STOP: 1,
    Kind.DRAIN: 1,
    Kind.RENEW: 1,
    Kind.CLOCK: 1,
    Kind.PUSH: 3,
    Kind.SOURCE: 4,
    Kind.LOSS: 2,
}

HARMLESS = frozenset(
    {Kind.SLOW, Kind.SLOW_LINK, Kind.CUT, Kind.SINK, Kind.CLOCK, Kind.PUSH, Kind.SOURCE, Kind.PAUSE, Kind.SLOW_DISK}
    | {Kind.STALLED_COPY}
)
"""What never makes the layout give up a replica; all others may."""

ALONE = frozenset(
    {
        Kind.WIPE,
        Kind.NODES,
        Kind.LOSS,
        Kind.STOP,
        Kind.RENEW,
        Kind.LOST_TAIL,
        Kind.DAMAGE,
        Kind.DAMAGED_UNIT,
        Kind.STUCK_QUERY,
        Kind.FULL_STORE,
    }
)
"""What takes a copy of a shard away for good: the flow has to be whole before, and whole again before anything else."""

PAUSED = 1 / 4
"""Share of the runs in which somebody pauses the flow meanwhile."""

TORN = 1 / 4
"""Share of the runs in which a node is killed while it carries out what an event has led to."""

BAD_DISKS = 1 / 4
"""Share of the runs in which a disk loses the end of the ingress log, or what it has of a replica is damaged."""

WRITE_FAULTS = (Kind.TORN_WRITE, Kind.FAILED_WRITE, Kind.FULL_DISK, Kind.SLOW_DISK, Kind.DAMAGED_UNIT)
"""What disks do to those who write to them or read from them."""

WRITE_FAULTED = 1 / 3
"""Share of the runs in which they do."""

JOB_FAULTS = (Kind.FAILED_START, Kind.STUCK_QUERY, Kind.FULL_STORE, Kind.STALLED_COPY)
"""What happens to the work that a node does for its replicas off its loop."""

JOBS_FAULTED = 1 / 3
"""Share of the runs in which it does."""

LEADER_FAULTS = {Kind.KILL: 6, Kind.POWER: 1, Kind.FREEZE: 1, Kind.PART: 1, Kind.PART_ONE_WAY: 1, Kind.ISOLATE: 2}
"""What is done to the node that leads the ingress, and how often. It must not have decided anything that the others do
not know of, and faults of any node at any time seldom find it in the few milliseconds in which it could have. So it is
given rows just before, and what it sends takes long."""

LEAD_MS = 8.0
"""How long before: longer than it takes to force an entry to a disk."""

LEAD_SLOWNESS = 60.0
"""How many times as long as usual the leader's messages take then."""

LED_ASTRAY = 2 / 3
"""Share of the runs in which it is done."""

LONGEST_WRITE = 16
"""Operations of the ingress log after which its machine may lose its power: more than one pulse takes."""

SEVERAL = 1 / 2
"""Share of the runs in which several nodes are lost at once, with their disks, up to two times."""

SET_MS = 3_600_000.0
"""A clock is set by up to this, forwards or backwards."""

SHORTEST_MS = 3_000.0
"""In a shorter run a flow is hardly ever whole when they are."""

MOST_LOST = 3

MOST_CHOICE = 7
"""Nodes among which those that are lost are looked for: the number of sets grows quickly with it."""

LONGEST_FUSE = 7
"""A fuse is up to two to the power of this many places long, every power as often as any other: most of them are short,
and some last from one event that asks for much, such as another layout, to the next."""

POSTPONED_MS = 1_000.0
MOST_POSTPONED = 8
"""How often a fault is put off because the flow could not stand it, before it is left out."""


@dataclass(frozen=True)
class Fault:
    """One thing that is done at ``at_ms``, to one node or between two, for ``length_ms``; after so many places between
    two instructions of one event, if it is a kill within an event (``fuse``), and to ``more`` nodes at the same moment.
    If it is ``aimed``, then to whichever node leads the ingress at that moment.
    """

    at_ms: float
    kind: Kind
    target: NodeId
    other: NodeId
    length_ms: float
    postponed: int = 0
    fuse: int = 0
    more: tuple[NodeId, ...] = ()
    aimed: bool = False

    def __str__(self) -> str:
        if self.more:
            return f"{self.kind} {', '.join(self.more)} for {self.length_ms / 1000:.1f} s"
        if self.fuse:
            return f"{self.kind} {self.target} at place {self.fuse}, away for {self.length_ms / 1000:.1f} s"
        return f"{self.kind} {self.target} ({self.other}) for {self.length_ms / 1000:.1f} s"


def make_schedule(random: Random, names: Sequence[NodeId], length_ms: float, mean_ms: float) -> list[Fault]:
    """The faults of a run: moments at random, some of them with two faults at once."""
    faults: list[Fault] = []
    at_ms = random.uniform(300.0, max(500.0, min(3_000.0, length_ms / 3)))
    while at_ms < length_ms:
        for _ in range(2 if random.random() < 0.2 else 1):
            kind = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            target, other = random.sample(list(names), 2)
            length = random.choice((random.uniform(50, 1_500), random.uniform(1_000, 10_000)))
            faults.append(Fault(at_ms, kind, target, other, length))
        at_ms += random.expovariate(1.0 / mean_ms)
    return faults


def make_pauses(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """Pauses that are asked for while faults go on; drawn apart from them, so that what a seed stands for stays."""
    if random.random() >= PAUSED:
        return []
    return [Fault(random.uniform(0.0, length_ms), Kind.PAUSE, names[0], names[-1], random.uniform(500.0, 6_000.0))]


def make_tears(random: Random, names: Sequence[NodeId], length_ms: float, number: int | None = None) -> list[Fault]:
    """Nodes that are killed within an event: ``number`` of them, or one in some runs. Drawn apart, as pauses are."""
    if number is None:
        number = 1 if random.random() < TORN else 0
    out: list[Fault] = []
    for _ in range(number):
        at_ms, fuse = random.uniform(0.0, length_ms), round(2 ** random.uniform(0, LONGEST_FUSE))
        away_ms = random.choice((random.uniform(50, 1_500), random.uniform(1_000, 10_000)))
        target, other = random.sample(list(names), 2)
        out.append(Fault(at_ms, Kind.TEAR, target, other, away_ms, fuse=fuse))
    return out


def make_bad_disks(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """In some runs a disk that does not give back what was written to it. Drawn apart, as pauses are."""
    if random.random() >= BAD_DISKS:
        return []
    at_ms, away_ms = random.uniform(length_ms / 4, length_ms), random.uniform(50.0, 1_500.0)
    target, other = random.sample(list(names), 2)
    return [Fault(at_ms, random.choice((Kind.LOST_TAIL, Kind.DAMAGE)), target, other, away_ms)]


def make_write_faults(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """In some runs up to three faults of disks that are written to or read. Drawn apart, as pauses are."""
    if random.random() >= WRITE_FAULTED:
        return []
    out: list[Fault] = []
    kinds = [kind for kind in WRITE_FAULTS if kind not in ALONE or length_ms >= SHORTEST_MS]
    for _ in range(random.randint(1, 3)):
        at_ms, away_ms = random.uniform(0.0, length_ms), random.uniform(50.0, 3_000.0)
        target, other = random.sample(list(names), 2)
        fuse = random.randint(1, LONGEST_WRITE)
        out.append(Fault(at_ms, random.choice(kinds), target, other, away_ms, fuse=fuse))
    return out


def make_job_faults(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """In some runs up to three faults of queries and of disks that take no units. Drawn apart, as pauses are."""
    if random.random() >= JOBS_FAULTED:
        return []
    out: list[Fault] = []
    kinds = [kind for kind in JOB_FAULTS if kind not in ALONE or length_ms >= SHORTEST_MS]
    for _ in range(random.randint(1, 3)):
        at_ms, away_ms = random.uniform(0.0, length_ms), random.uniform(200.0, 6_000.0)
        target, other = random.sample(list(names), 2)
        out.append(Fault(at_ms, random.choice(kinds), target, other, away_ms))
    return out


def make_losses(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """Nodes that are lost at the same moment, with their disks: two or three of those in ``more`` that the flow can
    stand, those that come first if there is a choice. Drawn apart, as pauses are."""
    if random.random() >= SEVERAL or length_ms < SHORTEST_MS:
        return []
    out: list[Fault] = []
    for _ in range(random.randint(1, 2)):
        at_ms, away_ms = random.uniform(0.1, 0.9) * length_ms, random.uniform(50, 3_000)
        order = random.sample(list(names), min(len(names), MOST_CHOICE))
        out.append(Fault(at_ms, Kind.NODES, order[0], order[1], away_ms, more=tuple(order)))
    return out


def make_leader_faults(random: Random, names: Sequence[NodeId], length_ms: float) -> list[Fault]:
    """In some runs up to two faults of the node that leads the ingress. Drawn apart, as pauses are."""
    if random.random() >= LED_ASTRAY:
        return []
    out: list[Fault] = []
    for _ in range(random.randint(1, 2)):
        at_ms, away_ms = random.uniform(length_ms / 5, length_ms), random.uniform(300.0, 3_000.0)
        kind = random.choices(list(LEADER_FAULTS), list(LEADER_FAULTS.values()))[0]
        target, other = random.sample(list(names), 2)
        out.append(Fault(at_ms, kind, target, other, away_ms, aimed=True))
    return out
