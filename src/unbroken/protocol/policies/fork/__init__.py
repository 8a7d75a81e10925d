"""Forks: a replica whose input is missing goes on with the rest of it on a copy of its state, tentatively."""

from __future__ import annotations

from unbroken.protocol.agenda import Stage
from unbroken.protocol.kernel import Kernel
from unbroken.protocol.policies.fork.forks import Forks
from unbroken.protocol.policies.fork.instructions import FeedFork, ForkEffects, ForkReplica, PauseReplica
from unbroken.protocol.policies.fork.messages import Health

VOCABULARY = (Health, ForkReplica, FeedFork, PauseReplica, ForkEffects)


def build(kernel: Kernel) -> Forks:
    policy = Forks(kernel.around, kernel.roster, kernel.advance, kernel.sinks, kernel.reports, kernel.policies)
    kernel.agenda.add(Stage.INPUT, policy.tick, policy.wake_times_ms, lambda: bool(policy.watches or policy.orphans))
    return policy
