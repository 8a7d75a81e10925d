"""The ingress log and disks: what is written and not yet forced, and members that have lost the end of their log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.ingress.log import (
    Append,
    AppendAck,
    Entry,
    Held,
    IngressLog,
    InSync,
    JoinLog,
    ProposeInSync,
    Recall,
    Tip,
)
from unbroken.protocol.instructions import CommitEntry, Instruction, PersistEntry, Report, Send
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.ingress import LeadHandedOver, LogContradicted, LogEntriesLost
from unit.protocol.ingress.forced_log import ForcedLog

PAIR = InSync(1, "a", frozenset("ab"), 0)
TRIO = InSync(1, "a", frozenset("abc"), 0)
ALONE = InSync(1, "a", frozenset("a"), 0)


def entry(index: int, term: int = 1, body: bytes = b"x", pulse: int = 0) -> Entry:
    return Entry(index, term, body, pulse)


# --- written and forced -----------------------------------------------------------------------------------


def test_a_leader_commits_only_what_is_on_its_disk() -> None:
    log = IngressLog("a", PAIR)
    log.append(b"x")
    assert log.receive("b", AppendAck(1, 1)) == [] and log.durable == 0
    assert log.persisted(1)[0] == CommitEntry(entry(1))


def test_a_member_alone_commits_when_its_disk_is_done() -> None:
    log = IngressLog("a", ALONE)
    assert log.append(b"x") == [PersistEntry(entry(1))] and log.append(b"y") == [PersistEntry(entry(2, body=b"y"))]
    assert log.persisted(2) == [CommitEntry(entry(1)), CommitEntry(entry(2, body=b"y"))]


def test_a_follower_acknowledges_what_is_on_its_disk_and_once_for_a_group() -> None:
    log = IngressLog("b", PAIR)
    for index in (1, 2, 3):
        assert log.receive("a", Append(1, entry(index), 0)) == [PersistEntry(entry(index))]
    assert log.receive("a", Append(1, entry(1), 0)) == [], "it is being written"
    assert log.connected("a") == [Send("a", AppendAck(1, 0))]
    assert log.persisted(2) == [Send("a", AppendAck(1, 2))]
    assert log.persisted(1) == [Send("a", AppendAck(1, 3))]


def test_what_the_leader_calls_committed_waits_for_the_disk() -> None:
    log = IngressLog("b", PAIR)
    assert log.receive("a", Append(1, entry(1), 1)) == [PersistEntry(entry(1))] and log.committed == 0
    assert log.persisted(1) == [Send("a", AppendAck(1, 1)), CommitEntry(entry(1))]


def test_an_entry_that_replaces_one_is_not_on_disk_because_that_was() -> None:
    log = IngressLog("b", PAIR)
    for index in (1, 2):
        log.receive("a", Append(1, entry(index), 0))
    other = entry(1, 2, b"y")
    assert log.receive("c", Append(2, other, 0)) == [PersistEntry(other)]
    assert log.persisted(1) == log.persisted(1) == [], "the first two writings are of no use"
    assert log.persisted(1) == [Send("c", AppendAck(2, 1))]
    log.check()


def test_more_cannot_be_on_disk_than_was_written() -> None:
    log = IngressLog("a", ALONE)
    log.append(b"x")
    with pytest.raises(InvariantViolation, match="2 entries are on the disk of a, 1 written"):
        log.persisted(2)


# --- lost entries -----------------------------------------------------------------------------------------


class Pair:
    """Members that talk to each other, and a store with compare-and-set."""

    def __init__(self, sync: InSync, *logs: ForcedLog) -> None:
        self.doc = sync
        self.logs = {log.me: log for log in logs}
        self.commits: dict[NodeId, dict[int, bytes]] = {log.me: {} for log in logs}
        self.notices: list[Notice] = []

    def run(self, me: NodeId, steps: Sequence[Instruction]) -> None:
        queue = [(me, step) for step in steps]
        while queue:
            who, step = queue.pop(0)
            if isinstance(step, Send):
                queue += [(step.to, answer) for answer in self.logs[step.to].receive(who, step.message)]
            elif isinstance(step, CommitEntry):
                self.commits[who][step.entry.index] = step.entry.body
            elif isinstance(step, Report):
                self.notices.append(step.notice)
            elif isinstance(step, ProposeInSync) and step.replaces == self.doc.version:
                self.doc = step.proposal
                queue += [(name, answer) for name, log in self.logs.items() for answer in log.in_sync(self.doc)]
            for log in self.logs.values():
                log.check()

    def begin(self, *names: NodeId) -> None:
        for name in names:
            self.run(name, self.logs[name].begin())
        for name in self.logs:
            for peer in self.logs:
                self.run(name, self.logs[name].connected(peer))


OLD = [entry(index, 1, b"old-%d" % index) for index in range(1, 11)]


@pytest.mark.parametrize("restarted", [True, False], ids=["a follower that restarted", "a follower that never stopped"])
def test_a_leader_with_a_shorter_log_hands_the_lead_to_the_member_that_has_more(restarted: bool) -> None:
    """Entries 6 to 10 were committed; the leader lost them, and would commit others in their place."""
    a = ForcedLog.recovered("a", PAIR, 0, OLD[:5], 0, False)
    b = ForcedLog.recovered("b", PAIR, 0, OLD, 0, False) if restarted else ForcedLog("b", PAIR)
    if not restarted:
        for each in OLD:
            b.receive("a", Append(1, each, 10))
    pair = Pair(PAIR, a, b)
    pair.begin("a", "b")
    assert pair.doc == InSync(3, "b", frozenset("b"), 2) and b.leading and a.expelled
    assert pair.notices == [LeadHandedOver("a", 5, "b", 10)]
    pair.run("b", b.append(b"new"))
    assert b.committed == 11 and pair.commits["a"] == {}
    assert {10: b"old-10", 11: b"new"}.items() <= pair.commits["b"].items() or not restarted


def test_a_leader_appends_nothing_before_it_knows_that_nothing_is_lost() -> None:
    a = ForcedLog.recovered("a", TRIO, 0, OLD[:5], 0, False)
    a.begin()
    assert a.in_sync(InSync(2, "a", frozenset("abc"), 1)) == [Send("b", Recall(2)), Send("c", Recall(2))]
    assert not a.leading and a.elected
    with pytest.raises(InvariantViolation):
        a.append(b"x")
    assert a.connected("c") == [Send("c", Recall(2))], "the question may be lost with a link"
    assert a.receive("b", Held(2, Tip(1, 5), 5)) == [] and a.receive("c", Held(1, Tip(1, 9), 9)) == []
    assert a.receive("c", Held(2, Tip(1, 4), 0))[0] == Send("b", Append(2, OLD[0], 0))
    assert a.leading


def test_a_leader_does_not_wait_for_a_member_that_is_lost() -> None:
    a = ForcedLog.recovered("a", PAIR, 0, OLD[:5], 0, False)
    a.begin()
    a.in_sync(InSync(2, "a", frozenset("ab"), 1))
    [step] = a.lost("b")
    assert isinstance(step, ProposeInSync) and step.proposal.members == frozenset("a")
    assert a.in_sync(step.proposal)[-1] == CommitEntry(OLD[4]) and a.leading


def test_of_several_members_the_one_with_the_latest_entries_leads() -> None:
    """By the term of the last entry, then by its index: a longer log may be an old one that was torn back."""
    a = ForcedLog.recovered("a", TRIO, 0, OLD[:5], 0, False)
    a.begin()
    a.in_sync(InSync(2, "a", frozenset("abc"), 1))
    a.receive("b", Held(2, Tip(1, 9), 0))
    [_, step] = a.receive("c", Held(2, Tip(2, 7), 0))
    assert step == ProposeInSync(InSync(3, "c", frozenset("bc"), 2), 1)


def test_a_member_whose_committed_entries_are_not_all_here_leads_whatever_its_terms() -> None:
    a = ForcedLog.recovered("a", PAIR, 0, OLD[:5], 0, False)
    a.begin()
    a.in_sync(InSync(2, "a", frozenset("ab"), 1))
    [_, step] = a.receive("b", Held(2, Tip(0, 8), 8))
    assert step == ProposeInSync(InSync(3, "b", frozenset("b"), 2), 1)


def test_a_longer_log_before_the_base_is_not_preferred() -> None:
    a = ForcedLog.recovered("a", PAIR, 10, [], 10, False)
    a.begin()
    a.in_sync(InSync(2, "a", frozenset("ab"), 1))
    a.receive("b", Held(2, Tip(1, 9), 0))
    assert a.leading


def test_a_leader_that_never_stopped_replaces_a_longer_tail() -> None:
    """No other member has it, so it is not committed."""
    c = ForcedLog("c", TRIO)
    c.receive("a", Append(1, entry(1), 0))
    c.lost("a")
    steps = c.in_sync(InSync(2, "c", frozenset("bc"), 1))
    assert Recall(2) not in [step.message for step in steps if isinstance(step, Send)] and c.leading


def test_a_follower_that_lost_committed_entries_is_left_out() -> None:
    a = ForcedLog("a", PAIR)
    for each in OLD:
        a.append(each.body)
    a.receive("b", AppendAck(1, 8))
    assert a.committed == 8
    steps = a.receive("b", JoinLog("", 0, Tip(1, 7)))
    assert steps[0] == Report(LogEntriesLost("b", 7, 8))
    assert steps[1] == ProposeInSync(InSync(2, "a", frozenset("a"), 1), 0)
    assert a.receive("b", JoinLog("", 0, Tip(1, 7))) == [], "it was said, and proposed"


def test_a_follower_that_lost_entries_that_are_not_committed_gets_them_again() -> None:
    a = ForcedLog("a", TRIO)
    for each in OLD:
        a.append(each.body)
    a.receive("b", AppendAck(1, 10))
    a.receive("c", AppendAck(1, 4))
    b = ForcedLog.recovered("b", TRIO, 0, OLD[:6], 0, False)
    [ask] = b.begin()
    assert isinstance(ask, Send)
    for step in a.receive("b", ask.message):
        assert isinstance(step, Send)
        b.receive("a", step.message)
    a.receive("c", AppendAck(1, 10))
    assert a.committed == 4, "what it acknowledged in its earlier life does not count"
    assert b.acknowledged == 10


def test_a_leader_that_contradicts_what_is_committed_is_left_out() -> None:
    b = ForcedLog("b", PAIR)
    for each in OLD:
        b.receive("a", Append(1, each, 10))
    sync = InSync(2, "a", frozenset("ab"), 1)
    b.in_sync(sync)
    assert b.receive("a", Append(2, OLD[5], 5)) == [Send("a", AppendAck(2, 6))], "the same entry is welcome"
    notice, step = b.receive("a", Append(2, entry(6, 2, b"NEW-6"), 5))
    assert notice == Report(LogContradicted("b", "a", 6, 2, 1))
    assert step == ProposeInSync(InSync(3, "b", frozenset("b"), 2), 1)
    with pytest.raises(InvariantViolation):
        b.take(entry(6, 2, b"NEW-6"))


def test_a_member_that_was_brought_up_to_date_is_not_suspected_any_longer() -> None:
    b = ForcedLog.recovered("b", PAIR, 0, OLD[:5], 0, False)
    for each in OLD[:6]:
        b.receive("a", Append(1, each, 6))
    b.lost("a")
    b.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert b.leading, "what it has found was confirmed, and more"
