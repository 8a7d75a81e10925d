"""A flow with numbered rows that loses a node: latency, processor time and bytes, second by second around the kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unbroken.client import Subscription
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId, ShardId
from unbroken_lab.experiments.experiment import Row, Rows, Say, Size, Value, number
from unbroken_lab.experiments.observation.course import Course
from unbroken_lab.experiments.observation.figures import Samples, gap
from unbroken_lab.experiments.observation.observed import START_S, Observed, observed
from unbroken_lab.experiments.ordering.figures import leader_at, terms, victim
from unbroken_lab.experiments.paper.rosinosky.numbered import NumberedReader, per_second
from unbroken_lab.experiments.paper.rosinosky.quiet import SETTLE_S, SETTLED_PULSES, SLACK_S, stay
from unbroken_lab.experiments.parameters.ways import LEADER, NONE
from unbroken_lab.experiments.recovery.strategy_figures import told_since

FOLLOWER = "follower"
"""Of the two replicas of a led segment, the one that does not lead."""


@dataclass(frozen=True)
class Plan:
    """How long a flow warms up, is looked at before the kill, and after it."""

    warm_s: float
    before_s: int
    after_s: int

    @classmethod
    def of(cls, size: Size, way: str, warm_s: float = 15.0) -> Plan:
        """A node that has to be started again takes a while."""
        if size.quick:
            return cls(2.0, 4, 6)
        return cls(warm_s, 15, 45 if way == NONE else 25)

    @property
    def stream_s(self) -> int:
        return int(START_S + self.warm_s + SETTLE_S + self.before_s + self.after_s + SLACK_S)


@dataclass(frozen=True)
class Target:
    """What is killed: a node with a replica of this shard, the one that leads it or the one that does not.

    ``led``: whether one of the replicas leads. Otherwise the first replica is meant, whatever ``whom`` says.
    """

    shard: ShardId
    led: bool
    whom: str = LEADER

    def choose(self, run: Observed) -> NodeId:
        hosts = list(run.layout().working_nodes_of(self.shard))
        if not hosts:
            raise UnbrokenError(f"no node hosts {self.shard}")
        if not self.led:
            return hosts[0]
        leader = leader_at(terms(run.history(), self.shard), time.time() * 1_000)
        if leader is None:
            raise UnbrokenError(f"nobody has the lead of {self.shard}")
        return victim(hosts, leader.node, self.whom)


@dataclass(frozen=True)
class Faulted:
    """What was seen of a flow that lost ``node`` at ``killed_ms``, in these ``seconds`` after it."""

    reader: NumberedReader
    course: Course
    node: NodeId
    killed_ms: float
    seconds: range
    story: Sequence[str]

    def rows(self, source: str, rate: float) -> list[Row]:
        """One row for each second, with the latencies of rows that arrived in it, and what the nodes used."""
        found, seconds = self.reader.rows(source), self.seconds
        latency = per_second(found, found.latencies(rate), self.killed_ms, seconds)
        cores = self.course.cpu_s.per_second(self.killed_ms, seconds)
        sent = self.course.sent.per_second(self.killed_ms, seconds)
        return [
            {**one, "cpu_cores": used, "bytes_per_s": bytes_per_s}
            for one, used, bytes_per_s in zip(latency, cores, sent, strict=True)
        ]

    def gaps(self) -> dict[str, Value]:
        """The longest time between two results before the kill, and across it and later."""
        begin, end = (self.killed_ms + second * 1_000 for second in (self.seconds.start, self.seconds.stop))
        samples = [one for one in self.reader.samples if one.rows and begin <= one.arrived_ms < end]
        return gaps_around(samples, self.killed_ms, end)


def gaps_around(samples: Samples, killed_ms: float, end_ms: float) -> dict[str, Value]:
    """A flow from which nothing comes any more is silent to the end of what was looked at."""
    before = [one for one in samples if one.arrived_ms < killed_ms]
    last = max((one.arrived_ms for one in samples), default=killed_ms)
    later = sorted((one for one in samples if one.arrived_ms >= killed_ms), key=lambda one: one.arrived_ms)
    newest = sorted(before, key=lambda one: one.arrived_ms)[-1:]
    return {"gap_before_ms": gap(before), "gap_ms": max(gap([*newest, *later]), round(end_ms - last, 1))}


def measure_fault(
    flow_file: str,
    load: Mapping[str, Any],
    plan: Plan,
    pulse_ms: float,
    target: Target,
    say: Say,
    *,
    restart: bool = False,
    read: Callable[[Subscription], NumberedReader] = NumberedReader,
) -> Faulted:
    """Run a flow of this package, kill a node of it, and look at it around the kill; ``restart``: start it again."""
    with observed(flow_file, {**load, "SECONDS": plan.stream_s, "PULSE_MS": pulse_ms}, read) as run:
        reader = run.reader
        assert isinstance(reader, NumberedReader)
        run.settle(plan.warm_s, SETTLED_PULSES * pulse_ms, plan.warm_s + SETTLE_S)
        with Course(run) as course:
            since_ms = time.time() * 1_000
            stay(run, plan.before_s)
            node = target.choose(run)
            killed_ms = run.kill(node)
            say(f"{node} killed")
            began = time.monotonic()
            if restart:
                run.restart(node)
            stay(run, plan.after_s - (time.monotonic() - began))
            until_ms = time.time() * 1_000
        story = told_since(run.history(), killed_ms)
    if course.failure is not None:
        raise UnbrokenError(f"the nodes could not be asked what they use: {course.failure}")
    seconds = range(int((since_ms - killed_ms) / 1_000), int((until_ms - killed_ms) / 1_000))
    return Faulted(reader, course, node, killed_ms, seconds, story)


def before_and_after(rows: Rows, figure: str) -> tuple[list[float], list[float]]:
    """The values of a figure in the seconds before the kill, and from it on."""
    before: list[float] = []
    after: list[float] = []
    for row in rows:
        value, second = number(row, figure), number(row, "second")
        if value is not None and second is not None:
            (before if second < 0 else after).append(value)
    return before, after
