"""Deliberately broken variants of the protocol: the campaign finds each of them within a few seeds, with the faults
that it always has, and schedules of steps in any order do.

A simulator that has become blind passes every seed. These show that it sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from unbroken.protocol.ingress.log import IngressLog
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.replica.cuts import Gate
from unbroken.protocol.replica.inbox import Arrival, Inbox
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.campaign import Options, run_seed
from unbroken_lab.sim.steps.ingress import run_ingress
from unbroken_lab.sim.steps.schedules import run_schedule

OPTIONS = Options(length_s=2.0, mean_s=0.5, most_nodes=4, check_every=50)

MOST_SEEDS = 10
"""Of the campaign, which finds most variants with the first one."""

MOST_SCHEDULES = 20


def accept_copies(patch: pytest.MonkeyPatch) -> None:
    """Every copy of a unit is taken, not only the first."""
    arrive = Inbox.arrive

    def twice(self: Inbox, header: UnitHeader) -> Arrival:
        found = arrive(self, header)
        return Arrival.ACCEPTED if found is Arrival.DUPLICATE and header.number in self.headers else found

    patch.setattr(Inbox, "arrive", twice)


def acknowledge_ahead(patch: pytest.MonkeyPatch) -> None:
    """Units are dropped that a consumer has not committed."""
    ack = Outbox.ack

    def hasty(self: Outbox, subscriber: str, through: int, level: int = 0, rebuilt: Rebuilt = FROM_THE_FIRST) -> None:
        ahead = 0 if self.stream.consumer.part == "sink" else 2
        ack(self, subscriber, min(self.last, through + ahead), level, rebuilt)

    patch.setattr(Outbox, "ack", hasty)


def commit_alone(patch: pytest.MonkeyPatch) -> None:
    """The leader of the ingress does not wait for the other members."""
    advance = IngressLog._advance

    def alone(self: IngressLog) -> object:
        self.acked = dict.fromkeys(self._followers(), self.last)
        return advance(self)

    patch.setattr(IngressLog, "_advance", alone)


def commit_unwritten(patch: pytest.MonkeyPatch) -> None:
    """An entry counts before it is on disk."""
    patch.setattr(IngressLog, "durable", property(lambda self: self.last))


def answer_each_instance(patch: pytest.MonkeyPatch) -> None:
    """The answer of a round is not fixed: each source instance of a query is told what is there when it asks."""

    def each(self: Gate, instance: str, start: int, *, give_up: bool = False) -> int | None:
        found = self.ordering.next(start)
        return start if found is None and give_up else found

    patch.setattr(Gate, "ask", each)


def in_any_order(seed: int) -> object:
    return run_schedule(seed, steps=300, fault_chance=0.05)


@dataclass(frozen=True)
class Mutation:
    """A broken variant, what the campaign says of it, and the schedules of steps that show it."""

    apply: Callable[[pytest.MonkeyPatch], None]
    failure: str
    schedule: Callable[[int], object] = in_any_order


MUTATIONS = [
    Mutation(accept_copies, r"is accepted twice by"),
    Mutation(acknowledge_ahead, r"is dropped before|is needed by"),
    Mutation(
        commit_alone,
        r"commits another entry|commits what is not|with another content|has lost committed entry",
        run_ingress,
    ),
    Mutation(commit_unwritten, r"commits what is not on its disk"),
    Mutation(answer_each_instance, r"instances of one round were told"),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.apply.__name__)
def test_a_broken_variant_is_found(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    mutation.apply(monkeypatch)
    failures = (run_seed(seed, OPTIONS).failure for seed in range(MOST_SEEDS))
    failure = next((found for found in failures if found is not None), None)
    assert failure is not None and re.search(mutation.failure, failure), failure


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.apply.__name__)
def test_a_broken_variant_is_found_by_steps_in_any_order(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    mutation.apply(monkeypatch)
    with pytest.raises(AssertionError, match=mutation.failure):
        for seed in range(MOST_SCHEDULES):
            mutation.schedule(seed)
