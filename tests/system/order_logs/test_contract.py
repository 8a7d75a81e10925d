"""What every order log promises, shown with real servers of both kinds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.orders.members import SHARD, WAIT_S, Member, Service, order, orders
from unbroken.errors import InvariantViolation
from unbroken.node.policies.leader.head import ORDER
from unbroken.node.policies.leader.log import NOT_FOLLOWED
from unbroken.protocol.policies.leader.orders import LeaderKnown
from unbroken.protocol.values.ids import ShardId

Make = Callable[..., Member]
CHILD = Path(__file__).with_name("child.py")


def test_what_the_leader_publishes_comes_to_everybody_in_order(service: Service, member: Make) -> None:
    a, b = member(service, "a").follow(), member(service, "b").follow()
    assert a.lead(1) == LeaderKnown(SHARD, 1, "a", 0)
    for number in range(1, 6):
        a.log.publish(SHARD, 1, [order(number, 1)])
    a.log.publish(SHARD, 1, orders(6, 205, 1))
    for each in (a, b):
        assert each.wait_orders(205) == orders(1, 205, 1)
        assert each.leaders() == [LeaderKnown(SHARD, 1, "a", 0)]
        assert not each.refusals()


def test_an_old_leader_adds_nothing_and_the_new_one_goes_on(service: Service, member: Make) -> None:
    a, b = member(service, "a").follow(), member(service, "b").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    b.wait_orders(3)
    assert b.lead(2) == LeaderKnown(SHARD, 2, "b", 3)
    a.log.publish(SHARD, 1, [order(4, 1, last=400)])
    assert a.wait_refusal(1).reason == "b leads in term 2"
    b.log.publish(SHARD, 2, [order(4, 2)])
    c = member(service, "c").follow()
    for each in (a, b, c):
        assert each.wait_orders(4) == [*orders(1, 3, 1), order(4, 2)]


def test_a_term_belongs_to_one_node(service: Service, member: Make) -> None:
    found = [member(service, name).follow() for name in "abcd"]
    for each in found:
        each.log.lead(SHARD, 1)
    for each in found:
        each.wait_leader()
    [winner] = {leader for each in found for leader in each.leaders()}
    for each in found:
        if each.name == winner.leader:
            assert not each.refusals()
        else:
            assert each.wait_refusal(1).reason == f"{winner.leader} leads in term 1"
            each.log.publish(SHARD, 1, [order(1, 1, last=99)])
            each.wait_refusal(1, count=2)


def test_an_order_may_be_published_again(service: Service, member: Make) -> None:
    a = member(service, "a").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 4, 1))
    a.log.publish(SHARD, 1, orders(1, 4, 1))
    a.wait_orders(4)
    a.log.publish(SHARD, 1, orders(2, 6, 1))
    a.log.publish(SHARD, 1, [order(6, 1, last=99)])
    a.log.publish(SHARD, 1, [order(7, 1)])
    assert a.wait_orders(7) == orders(1, 7, 1)
    assert not a.refusals()
    assert member(service, "b").follow().wait_orders(7) == orders(1, 7, 1)


def test_an_order_that_leaves_a_gap_or_replaces_one_is_refused(service: Service, member: Make) -> None:
    a = member(service, "a").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 2, 1))
    a.wait_orders(2)
    a.log.publish(SHARD, 1, [order(4, 1)])
    assert a.wait_refusal(1).reason == "order 4 is not the next one after 2"
    a.lead(2)
    a.log.publish(SHARD, 2, [order(2, 2, last=99)])
    assert a.wait_refusal(2).reason == "order 2 was given before term 2"
    a.log.publish(SHARD, 2, [order(3, 2)])
    assert a.wait_orders(3) == [*orders(1, 2, 1), order(3, 2)]
    with pytest.raises(InvariantViolation, match="order 7 is published where 6 belongs"):
        a.log.publish(SHARD, 2, [order(5, 2), order(7, 2)])
    with pytest.raises(InvariantViolation, match="of term 1 is published in term 2"):
        a.log.publish(SHARD, 2, [order(4, 1)])


def test_a_leader_that_asks_again_is_told_again(service: Service, member: Make) -> None:
    a = member(service, "a").follow()
    a.lead(3)
    a.log.lead(SHARD, 3)
    a.wait(lambda: len(a.leaders()) == 2, "the answer")
    a.log.lead(SHARD, 2)
    assert a.wait_refusal(2).reason == "a leads in term 3"
    assert a.leaders() == [LeaderKnown(SHARD, 3, "a", 0)] * 2


def test_a_follower_begins_where_it_wants(service: Service, member: Make) -> None:
    a = member(service, "a").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 150, 1))
    a.wait_orders(150)
    a.lead(2)
    a.log.publish(SHARD, 2, orders(151, 160, 2))
    a.wait_orders(160)
    whole = a.orders()
    for after in (0, 20, 150, 155, 160):
        b = member(service, "b").follow(after=after)
        assert b.wait_leader(2) == LeaderKnown(SHARD, 2, "a", 150)
        assert b.wait_orders(160) == whole[after:]
    a.log.publish(SHARD, 2, [order(161, 2)])
    assert b.wait_orders(161) == [order(161, 2)]


def test_a_log_that_is_shorter_than_what_was_read_is_not_gone_on_with(service: Service, member: Make) -> None:
    a, b = member(service, "a").follow(), member(service, "b").follow(after=4)
    b.wait(lambda: bool(b.lost()), "the loss in an empty log")
    assert (b.lost()[0].after, b.lost()[0].first) == (4, 1)
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    a.wait_orders(3)
    b.follow(after=4)
    b.wait(lambda: len(b.lost()) == 2, "the loss in a short log")
    assert (b.lost()[1].after, b.lost()[1].first) == (4, 4)
    assert "ends with order 3" in b.lost()[1].reason
    b.log.lead(SHARD, 2)
    assert b.wait_refusal(2).reason == NOT_FOLLOWED


def test_forgetting_ends_it_and_following_again_begins_anew(service: Service, member: Make) -> None:
    a, b = member(service, "a").follow(), member(service, "b").follow()
    a.lead(1)
    a.log.publish(SHARD, 1, orders(1, 3, 1))
    b.wait_orders(3)
    b.log.forget(SHARD)
    told = len(b.events)
    a.log.publish(SHARD, 1, orders(4, 5, 1))
    a.wait_orders(5)
    b.log.publish(SHARD, 1, [order(6, 1)])
    assert b.wait_refusal(1).reason == NOT_FOLLOWED
    b.follow(after=2)
    b.wait_orders(5)
    assert b.orders()[3:] == orders(3, 5, 1)
    assert len(b.events) > told + 1 and not isinstance(b.events[told], LeaderKnown)


def test_shards_have_logs_of_their_own(service: Service, member: Make) -> None:
    a, b = member(service, "a"), member(service, "b")
    shards = [ShardId("counts", 0), ShardId("counts", 1), ShardId("counts@2", 0), ShardId("sums", 0)]
    for shard in shards:
        a.follow(shard)
        b.follow(shard)
    for each, shard in enumerate(shards):
        (a, b)[each % 2].log.lead(shard, 1)
    for each, shard in enumerate(shards):
        (a, b)[each % 2].wait_leader(1, shard)
        (a, b)[each % 2].log.publish(shard, 1, orders(1, 10 + each, 1))
    for each, shard in enumerate(shards):
        for one in (a, b):
            assert one.wait_orders(10 + each, shard) == orders(1, 10 + each, 1)
            assert [(found.term, found.leader) for found in one.leaders(shard)] == [(1, "ab"[each % 2])]


class Contender(threading.Thread):
    """A node that takes the lead from others at random, and publishes while it believes to lead."""

    def __init__(self, one: Member, seed: int, wanted: int) -> None:
        super().__init__(name=one.name, daemon=True)
        self.one = one
        self.random = random.Random(f"{seed}-{one.name}")
        self.wanted = wanted

    def run(self) -> None:
        end = time.monotonic() + WAIT_S
        while len(self.one.orders()) < self.wanted and time.monotonic() < end:
            known = self.one.leaders()
            term = known[-1].term if known else 0
            if self.random.random() < 0.15 or not known:
                self.one.log.lead(SHARD, term + 1)
            elif known[-1].leader == self.one.name:
                # What it publishes in an old term, or above a gap, must not get in; so it does not look too closely.
                first = max(len(self.one.orders()), known[-1].last) + 1
                given = range(first, first + self.random.randint(1, 4))
                content = self.random.randrange(1_000_000)
                self.one.log.publish(SHARD, term, [order(number, term, content) for number in given])
            threading.Event().wait(self.random.random() * 0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_contends_all_read_the_same(service: Service, member: Make, seed: int) -> None:
    wanted = 150
    contenders = [Contender(member(service, name).follow(), seed, wanted) for name in "abc"]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join(2 * WAIT_S)
    late = member(service, "late").follow()
    middle = member(service, "middle").follow(after=wanted // 2)
    read = {each.name: each.wait_orders(wanted)[:wanted] for each in (*(c.one for c in contenders), late)}
    assert read["a"] == read["b"] == read["c"] == read["late"]
    assert middle.wait_orders(wanted)[: wanted - wanted // 2] == read["a"][wanted // 2 :]
    assert len({each.term for each in read["a"]}) > 2, "the lead did not change hands"
    terms = [each.term for each in read["a"]]
    assert terms == sorted(terms)
    leaders = {found.term: found for contender in contenders for found in contender.one.leaders()}
    for contender in contenders:
        assert all(leaders[found.term] == found for found in contender.one.leaders())
    for number, term in enumerate(terms, 1):
        assert term not in leaders or leaders[term].last < number
        assert all(found.last >= number for found in leaders.values() if found.term > term)


@contextmanager
def child(service: Service, node: str, term: int, until: int, ends: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process that leads in a term and publishes, and ends when it has read an order."""
    what = {"kind": service.kind, "address": service.address, "name": service.name, "node": node}
    command = [sys.executable, str(CHILD), json.dumps(what | {"term": term, "until": until, "ends": ends})]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_leader_that_was_frozen_while_it_published_changes_nothing(service: Service, member: Make) -> None:
    b = member(service, "b").follow()
    with child(service, "a", term=1, until=100_000, ends=True) as process:
        b.wait_orders(20)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        known = b.lead(2)
        b.log.publish(SHARD, 2, orders(known.last + 1, known.last + 10, 2))
        b.wait_orders(known.last + 10)
        process.send_signal(signal.SIGCONT)
        told = (
            [line for line in iter(process.stdout.readline, "") if line.startswith("refused")] if process.stdout else []
        )
        assert told == ["refused 1\n"]
        read = b.orders()
        assert [each.term for each in read] == [1] * known.last + [2] * 10
        c = member(service, "c").follow()
        assert c.wait_orders(known.last + 10) == read
        assert process.wait(WAIT_S) == 0


def test_processes_that_take_turns_agree(service: Service, member: Make) -> None:
    a = member(service, "a").follow()
    with child(service, "b", term=1, until=60) as first, child(service, "c", term=2, until=60) as second:
        outputs = [process.communicate(timeout=2 * WAIT_S)[0].splitlines() for process in (first, second)]
    read = [[ORDER.decode(line.encode()) for line in lines if line.startswith("order/")] for lines in outputs]
    assert a.wait_orders(60)[:60] == read[0][:60] == read[1][:60]
