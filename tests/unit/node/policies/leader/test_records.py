"""The rule by which everybody reads an order log made of plain records, from wherever they begin."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.orders.members import SHARD, order, orders
from unbroken.node.policies.leader.log import Delivery, LogEvent, Standing
from unbroken.node.policies.leader.records import WINDOW, OrderLogMark, OrderRecord, Search, Tail, judge
from unbroken.protocol.policies.leader.orders import LeaderKnown, Order, Ordered, OrderRefused, OrdersLost


class Log:
    """Records as a server keeps them, and writers that have read them up to somewhere."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.marks = [OrderLogMark()]
        """How things stand before each record, and behind the last one."""

    @property
    def standing(self) -> Standing:
        return self.marks[-1].standing

    def add(self, node: str, term: int, given: Order | None = None, read: int | None = None) -> None:
        """Append what a node writes that has read up to an offset."""
        mark = self.marks[len(self.records) if read is None else read]
        record = OrderRecord(node, node, mark, term, given)
        self.records.append(record.to_bytes())
        found = judge(self.standing, record)
        self.marks.append(OrderLogMark(len(self.records), found if isinstance(found, Standing) else self.standing))


class Reading:
    """One follower of a log of which the records before ``low`` are deleted; as ``node`` it is told of its refusals."""

    def __init__(self, log: Log, after: int, low: int = 0, node: str = "") -> None:
        self.events: list[LogEvent] = []
        self.fed = 0
        delivery = Delivery(SHARD, after, self.events.append)
        tail = Tail(delivery, node, low, len(log.records), OrderRecord.from_bytes)
        while not delivery.ended and tail.position < len(log.records):
            at = tail.position
            assert at >= low
            tail.take(at, log.records[at])
            self.fed += 1
        tail.flush()
        self.mark = tail.mark

    @property
    def orders(self) -> list[Order]:
        return [each for event in self.events if isinstance(event, Ordered) for each in event.orders]

    @property
    def lost(self) -> list[OrdersLost]:
        return [event for event in self.events if isinstance(event, OrdersLost)]


@lru_cache
def busy_log(terms: int, each: int) -> Log:
    """A log in which every term has as many orders."""
    log = Log()
    for term in range(1, terms + 1):
        log.add("ab"[term % 2], term)
        for number in range(log.standing.last + 1, log.standing.last + each + 1):
            log.add("ab"[term % 2], term, order(number, term))
    return log


def test_records_survive_their_bytes() -> None:
    mark = OrderLogMark(7, Standing(3, "a", 4, 5))
    for record in (OrderRecord("a", "w", mark, 3), OrderRecord("b", "x", mark, 3, order(6, 3))):
        assert OrderRecord.from_bytes(record.to_bytes()) == record
    for data in (None, b"", b"{}", b"[1]", b"1\n2", b"\xff"):
        assert OrderRecord.from_bytes(data) is None


def test_what_does_not_count() -> None:
    standing = Standing(2, "b", 3, 5)

    def said(node: str, term: int, given: Order | None = None) -> Standing | str:
        return judge(standing, OrderRecord(node, node, OrderLogMark(), term, given))

    assert said("a", 3) == Standing(3, "a", 5, 5)
    assert said("a", 2) == "b leads in term 2"
    assert said("b", 2) == ""
    assert said("b", 2, order(6, 2)) == Standing(2, "b", 3, 6)
    assert said("a", 1, order(6, 1)) == said("a", 2, order(6, 2)) == said("a", 3, order(6, 3)) == "b leads in term 2"
    assert said("b", 2, order(5, 2)) == said("b", 2, order(4, 2, last=9)) == ""
    assert said("b", 2, order(3, 2)) == "order 3 was given before term 2"
    assert said("b", 2, order(7, 2)) == "order 7 is not the next one after 5"


def test_a_writer_learns_what_did_not_count() -> None:
    log = Log()
    log.add("a", 1)
    log.add("a", 1, order(1, 1))
    log.add("b", 2)
    log.add("a", 1, order(2, 1), read=2)
    log.add("a", 1, order(3, 1), read=2)
    log.records.append(b"something else")
    log.marks.append(OrderLogMark(len(log.records), log.standing))
    log.add("b", 2, order(2, 2))
    told = Reading(log, 0, node="a").events
    assert told == [
        LeaderKnown(SHARD, 1, "a", 0),
        Ordered(SHARD, (order(1, 1),)),
        LeaderKnown(SHARD, 2, "b", 1),
        Ordered(SHARD, (order(2, 2),)),
        OrderRefused(SHARD, 1, "b leads in term 2"),
    ]
    assert Reading(log, 0).events == told[:-1]


@pytest.mark.parametrize("after", [0, 1, 17, 9_000, 19_000, 19_990, 19_999, 20_000])
def test_a_place_in_a_long_log_is_found_with_a_few_looks(after: int) -> None:
    log = busy_log(terms=20, each=1_000)
    found = Reading(log, after)
    assert [each.number for each in found.orders] == list(range(after + 1, 20_001))
    assert found.fed - (20_000 - after) < 20 * WINDOW
    assert found.mark == log.marks[-1]


def test_the_last_record_may_be_a_very_late_one() -> None:
    log = deepcopy(busy_log(terms=2, each=5_000))
    for _ in range(WINDOW + 10):
        log.add("b", 1, order(4_000, 1, last=99), read=3_999)
    found = Reading(log, 9_990)
    assert [each.number for each in found.orders] == list(range(9_991, 10_001))
    assert found.fed < 40 * WINDOW


def test_what_was_deleted_is_lost_and_the_rest_is_not() -> None:
    log = busy_log(terms=2, each=500)
    low = 300
    assert not Reading(log, 700, low).lost
    assert not Reading(log, 299, low).lost
    [lost] = Reading(log, 100, low).lost
    assert lost.after == 100 and 299 < lost.first < 299 + WINDOW
    assert Reading(log, lost.first - 1, low).orders[0].number == lost.first
    # Everything was deleted: it cannot be known how things stand.
    assert Reading(log, 1_000, len(log.records)).lost == [OrdersLost(SHARD, 1_000, 0, lost.reason)]


def test_marks_about_what_is_deleted_are_passed_over() -> None:
    log = Log()
    log.add("a", 1)
    for number in range(1, 401):
        log.add("a", 1, order(number, 1), read=1)
    log.add("a", 1, order(401, 1))
    assert Reading(log, 401, 200).orders == []
    assert not Reading(log, 401, 200).lost
    assert Reading(log, 300, 200).lost[0].first == 401
    # A mark that is about a later place than its record belongs to another log.
    search = Search(0, 0, 10)
    search.learn(3, OrderRecord("a", "a", OrderLogMark(9, Standing(1, "a", 0, 0)), 1))
    assert search.decide() == OrderLogMark()


class Writer:
    def __init__(self, node: str) -> None:
        self.node = node
        self.read = 0


@st.composite
def contended(draw: st.DrawFn) -> Log:
    """A log with several writers, each of which has read some part of it and believes what it has read."""
    log, writers = Log(), [Writer(node) for node in "abc"]
    for _ in range(draw(st.integers(0, 40))):
        writer = draw(st.sampled_from(writers))
        writer.read = draw(st.integers(writer.read, len(log.records)))
        known = log.marks[writer.read].standing
        if known.leader == writer.node and draw(st.integers(0, 3)):
            for number in range(known.last + 1, known.last + 1 + draw(st.integers(1, 4))):
                content = draw(st.integers(0, 1_000))
                log.add(writer.node, known.term, order(number, known.term, content), writer.read)
        else:
            log.add(writer.node, known.term + 1, read=writer.read)
    return log


@given(contended(), st.data())
def test_all_readers_agree_from_wherever_they_begin(log: Log, data: st.DataObject) -> None:
    whole = Reading(log, 0)
    assert whole.mark == log.marks[-1] and not whole.lost
    assert [each.number for each in whole.orders] == list(range(1, log.standing.last + 1))
    terms = [each.term for each in whole.orders]
    assert terms == sorted(terms)
    leaders = {event.term: event for event in whole.events if isinstance(event, LeaderKnown)}
    for each in whole.orders:
        assert leaders[each.term].last < each.number
        assert all(found.last >= each.number for found in leaders.values() if found.term > each.term)
    after = data.draw(st.integers(0, log.standing.last + 2))
    low = data.draw(st.integers(0, len(log.records)))
    part = Reading(log, after, low)
    if part.lost:
        assert low > 0 or after > log.standing.last
        assert not part.orders
    else:
        assert part.orders == whole.orders[after:]
        assert part.mark == log.marks[-1]
        found = [event for event in part.events if isinstance(event, LeaderKnown)]
        assert all(leaders[event.term] == event for event in found)
        assert not leaders or found[-1] == leaders[max(leaders)]


def test_a_long_tail_of_orders_published_at_once_is_found() -> None:
    log = Log()
    log.add("a", 1)
    for number in range(1, 5_001):
        log.add("a", 1, order(number, 1), read=1)
    assert Reading(log, 4_000).orders == orders(4_001, 5_000, 1)
