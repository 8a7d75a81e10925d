"""The ingress log under every interleaving: crashes, lost links, late documents, racing proposals."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unbroken.protocol.ids import NodeId
from unbroken.protocol.ingress import (
    Append,
    AppendAck,
    Commit,
    Entry,
    IngressInstruction,
    IngressLog,
    InSync,
    Persist,
    ProposeInSync,
    Tell,
)

Action = tuple[Any, ...]


class IngressCluster:
    """Members of one ingress log, the links between them, and a store with compare-and-set."""

    def __init__(self, members: int) -> None:
        names = [f"m{i}" for i in range(members)]
        self.doc = InSync(1, names[0], frozenset(names), 0)
        self.logs = {name: IngressLog(name, self.doc) for name in names}
        self.disks: dict[NodeId, dict[int, Entry]] = {name: {} for name in names}
        self.committed: dict[int, Entry] = {}
        self.links: dict[tuple[NodeId, NodeId], deque[Append | AppendAck]] = {
            (a, b): deque() for a in names for b in names if a != b
        }
        self.unnoticed: list[tuple[NodeId, NodeId]] = []
        self.proposals: deque[tuple[NodeId, ProposeInSync]] = deque()
        self.news: dict[NodeId, deque[InSync]] = {name: deque() for name in names}
        self.serial = 0

    def actions(self) -> list[Action]:
        pairs = [(a, b) for a in self.logs for b in self.logs if a != b]
        return [
            *(("message", pair) for pair, queue in self.links.items() if queue and pair[1] in self.logs),
            *(("notice", pair) for pair in self.unnoticed if pair[0] in self.logs),
            *(("connect", p) for p in pairs if p not in self.links and p not in self.unnoticed),
            *(("decide",) for _ in self.proposals),
            *(("news", name) for name in self.logs if self.news[name]),
        ]

    def perform(self, action: Action) -> None:
        match action:
            case ("message", (sender, to)):
                self._carry_out(to, self.logs[to].receive(sender, self.links[sender, to].popleft()))
            case ("notice", (name, peer)):
                self.unnoticed.remove((name, peer))
                self._carry_out(name, self.logs[name].lost(peer))
            case ("connect", (name, peer)):
                self.links[name, peer] = deque()
                self._carry_out(name, self.logs[name].connected(peer))
            case ("decide",):
                self._decide()
            case ("news", name):
                self._carry_out(name, self.logs[name].in_sync(self.news[name].popleft()))

    def append(self, name: NodeId) -> None:
        if self.logs[name].leading:
            self.serial += 1
            self._carry_out(name, self.logs[name].append(f"{name} {self.serial}".encode()))

    def cut(self, pair: tuple[NodeId, NodeId]) -> None:
        if self.links.pop(pair, None) is not None:
            self.unnoticed.append(pair)

    def kill(self, name: NodeId) -> None:
        """Crash a member, unless it is the last in-sync one."""
        if not self.doc.members & set(self.logs) - {name}:
            return
        del self.logs[name]
        self.proposals = deque(p for p in self.proposals if p[0] != name)
        for pair in list(self.links):
            if pair[1] == name:
                self.cut(pair)

    def check(self) -> None:
        for name, log in self.logs.items():
            log.check()
            if name in self.doc.members:
                for index, entry in self.committed.items():
                    assert self.disks[name].get(index) == entry, f"{name} lost committed entry {index}"
        assert sorted(self.committed) == list(range(1, len(self.committed) + 1)), "committed entries have a hole"

    def settle(self) -> None:
        """No more faults: one leader is left, and what it appends is committed by all in-sync members."""
        self._run()
        leaders = [name for name, log in self.logs.items() if log.leading and name in self.doc.members]
        assert leaders == [self.doc.leader], f"{leaders} lead, the store says {self.doc}"
        self._check_committed(self.logs[leaders[0]].committed)
        self.append(leaders[0])
        last = self.logs[leaders[0]].last
        self._run()
        self._check_committed(last)
        assert max(self.committed) == last

    def _check_committed(self, last: int) -> None:
        for name in self.doc.members & set(self.logs):
            assert self.logs[name].committed == last, f"{name} committed only {self.logs[name].committed} of {last}"
            assert not self.logs[name].entries

    def _run(self) -> None:
        for _ in range(2_000):
            actions = self.actions()
            if not actions:
                return
            self.perform(actions[0])
            self.check()
        raise AssertionError("the ingress does not come to rest")

    def _decide(self) -> None:
        proposer, step = self.proposals.popleft()
        if step.replaces == self.doc.version:
            self.doc = step.proposal
            for news in self.news.values():
                news.append(self.doc)
        self.news[proposer].append(self.doc)

    def _carry_out(self, name: NodeId, steps: list[IngressInstruction]) -> None:
        for step in steps:
            match step:
                case Persist(entry):
                    self.disks[name][entry.index] = entry
                case Commit(entry):
                    known = self.committed.setdefault(entry.index, entry)
                    assert known == entry, f"{name} commits {entry}, but {known} was committed"
                case Tell(to, message):
                    if (name, to) in self.links:
                        self.links[name, to].append(message)
                case ProposeInSync():
                    self.proposals.append((name, step))


Choice = st.integers(0, 2**16)


class IngressMachine(RuleBasedStateMachine):
    cluster: IngressCluster

    @initialize(members=st.integers(2, 3))
    def start(self, members: int) -> None:
        self.cluster = IngressCluster(members)

    @precondition(lambda self: self.cluster.actions())
    @rule(choice=Choice)
    def step(self, choice: int) -> None:
        actions = self.cluster.actions()
        self.cluster.perform(actions[choice % len(actions)])

    @rule(choice=Choice)
    def append(self, choice: int) -> None:
        self.cluster.append(_pick(self.cluster.logs, choice))

    @precondition(lambda self: self.cluster.links)
    @rule(choice=Choice)
    def cut(self, choice: int) -> None:
        self.cluster.cut(_pick(self.cluster.links, choice))

    @rule(choice=Choice)
    def kill(self, choice: int) -> None:
        self.cluster.kill(_pick(self.cluster.logs, choice))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.check()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            self.cluster.settle()


def _pick(things: dict[Any, Any], choice: int) -> Any:
    return list(things)[choice % len(things)]


TestIngressMachine = IngressMachine.TestCase
TestIngressMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def run_ingress(seed: int) -> None:
    rng = random.Random(seed)
    cluster = IngressCluster(3 if seed % 3 else 2)
    slow = rng.choice(list(cluster.logs))  # hears from the store long after the others
    faults: list[Callable[[], None]] = [
        lambda: cluster.cut(rng.choice(list(cluster.links))) if cluster.links else None,
        lambda: cluster.kill(rng.choice(list(cluster.logs))),
    ]
    for _ in range(120):
        actions = [a for a in cluster.actions() if a != ("news", slow) or rng.random() < 0.05]
        chance = rng.random()
        if chance < 0.04:
            rng.choice(faults)()
        elif chance < 0.3 or not actions:
            cluster.append(rng.choice(list(cluster.logs)))
        else:
            cluster.perform(rng.choice(actions))
        cluster.check()
    cluster.settle()


@pytest.mark.parametrize("block", range(10))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 40, (block + 1) * 40):
        try:
            run_ingress(seed)
        except AssertionError as error:
            raise AssertionError(f"run_ingress(seed={seed}): {error}") from error
