"""The ingress log, case by case; the machine in test_ingress_machine.py covers the rest."""

from __future__ import annotations

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.ingress import (
    Append,
    AppendAck,
    Commit,
    Entry,
    IngressLog,
    InSync,
    Persist,
    ProposeInSync,
    Tell,
)

PAIR = InSync(1, "a", frozenset("ab"), 0)
TRIO = InSync(1, "a", frozenset("abc"), 0)


def entry(index: int, term: int = 1, body: bytes = b"x", pulse: int = 0) -> Entry:
    return Entry(index, term, body, pulse)


def test_an_entry_is_committed_when_every_member_has_it() -> None:
    log = IngressLog("a", TRIO)
    steps = log.append(b"x")
    assert steps == [Persist(entry(1)), Tell("b", Append(1, entry(1), 0)), Tell("c", Append(1, entry(1), 0))]
    assert log.receive("b", AppendAck(1, 1)) == []
    assert log.receive("c", AppendAck(1, 1))[0] == Commit(entry(1))
    log.check()


def test_a_single_member_commits_at_once() -> None:
    log = IngressLog("a", InSync(1, "a", frozenset("a"), 0))
    assert log.append(b"x", pulse=1) == [Persist(entry(1, pulse=1)), Commit(entry(1, pulse=1))]
    assert log.last_pulse == 1


def test_a_follower_persists_before_it_acknowledges_and_commits_when_told() -> None:
    log = IngressLog("b", PAIR)
    assert log.receive("a", Append(1, entry(1), 0)) == [Persist(entry(1)), Tell("a", AppendAck(1, 1))]
    assert log.receive("a", Append(1, None, 1)) == [Commit(entry(1))]


def test_an_acknowledgement_that_could_not_be_sent_is_sent_when_the_link_stands() -> None:
    log = IngressLog("b", PAIR)
    assert log.connected("a") == []
    log.receive("a", Append(1, entry(1), 0))
    assert log.connected("a") == [Tell("a", AppendAck(1, 1))]
    assert log.connected("c") == []


def test_only_the_leader_appends() -> None:
    with pytest.raises(InvariantViolation):
        IngressLog("b", PAIR).append(b"x")


def test_an_entry_that_comes_again_is_acknowledged_again_but_not_written_again() -> None:
    log = IngressLog("b", PAIR)
    log.receive("a", Append(1, entry(1), 0))
    assert log.receive("a", Append(1, entry(1), 0)) == [Tell("a", AppendAck(1, 1))]
    log.receive("a", Append(1, None, 1))
    assert log.receive("a", Append(1, entry(1), 1)) == [Tell("a", AppendAck(1, 1))]


def test_an_entry_behind_a_gap_is_not_acknowledged() -> None:
    assert IngressLog("b", PAIR).receive("a", Append(1, entry(2), 0)) == []


def test_messages_of_an_older_term_are_ignored() -> None:
    log = IngressLog("b", PAIR)
    log.in_sync(InSync(2, "b", frozenset("b"), 1))
    assert log.receive("a", Append(1, entry(1), 1)) == []
    assert log.receive("a", AppendAck(1, 9)) == []


def test_a_promoted_follower_keeps_what_may_have_been_committed() -> None:
    log = IngressLog("b", PAIR)
    log.receive("a", Append(1, entry(1), 0))
    [proposal] = log.lost("a")
    assert proposal == ProposeInSync(InSync(2, "b", frozenset("b"), 1), 0)
    assert log.in_sync(proposal.proposal) == [Commit(entry(1))]
    assert log.append(b"y")[0] == Persist(entry(2, 2, b"y"))


def test_a_new_leader_replaces_the_tail_of_another_follower() -> None:
    log = IngressLog("c", TRIO)
    log.receive("a", Append(1, entry(1), 0))
    log.receive("a", Append(1, entry(2), 0))
    other = entry(1, 2, b"of b")
    log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert log.receive("b", Append(2, other, 0))[0] == Persist(other)
    assert log.entries == [other]


def test_a_leader_is_believed_before_the_store_has_told() -> None:
    """Its messages come once; a follower that drops them would hold every later entry up."""
    log = IngressLog("c", TRIO)
    steps = log.receive("b", Append(2, entry(1, 2), 0))
    assert steps == [Persist(entry(1, 2)), Tell("b", AppendAck(2, 1))]
    assert log.receive("a", Append(1, entry(1), 0)) == [], "the old leader is not"
    assert log.in_sync(InSync(2, "b", frozenset("bc"), 1)) == []
    assert log.sync.version == 1


def test_a_proposal_on_an_outdated_document_is_made_again() -> None:
    log = IngressLog("c", TRIO)
    log.receive("b", Append(2, None, 0))
    [stale] = log.lost("b")
    assert isinstance(stale, ProposeInSync) and stale.replaces == 0
    [again] = log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert again == ProposeInSync(InSync(3, "c", frozenset("c"), 2), 1)


def test_a_member_lost_while_the_store_decides_is_proposed_afterwards() -> None:
    log = IngressLog("a", TRIO)
    log.append(b"x")
    assert log.lost("b") == [ProposeInSync(InSync(2, "a", frozenset("ac"), 1), 0)]
    assert log.lost("c") == [], "one proposal at a time"
    steps = log.in_sync(InSync(2, "a", frozenset("ac"), 1))
    assert steps[-1] == ProposeInSync(InSync(3, "a", frozenset("a"), 2), 1)
    assert Commit(entry(1)) in log.in_sync(InSync(3, "a", frozenset("a"), 2))


def test_a_follower_whose_new_leader_is_lost_already_takes_over() -> None:
    log = IngressLog("c", TRIO)
    assert log.lost("b") == [], "the leader's business"
    [step] = log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert step == ProposeInSync(InSync(3, "c", frozenset("c"), 2), 1)


def test_of_two_members_that_lose_each_other_only_one_goes_on() -> None:
    winner = InSync(2, "b", frozenset("b"), 1)
    log = IngressLog("a", PAIR)
    assert log.lost("b") == [ProposeInSync(InSync(2, "a", frozenset("a"), 1), 0)]
    log.append(b"x")
    assert log.in_sync(winner) == []
    assert not log.leading and log.committed == 0
    assert log.lost("b") == [] and log.connected("b") == []


def test_a_link_that_stands_again_carries_entries_and_the_commit() -> None:
    log = IngressLog("a", PAIR)
    log.append(b"x")
    log.receive("b", AppendAck(1, 1))
    log.append(b"y")
    second = entry(2, body=b"y")
    assert log.connected("b") == [Tell("b", Append(1, second, 1)), Tell("b", Append(1, None, 1))]


def test_an_older_document_changes_nothing() -> None:
    log = IngressLog("a", PAIR)
    log.in_sync(InSync(2, "a", frozenset("a"), 1))
    assert log.in_sync(PAIR) == [] and log.sync.version == 1


def test_the_last_pulse_ends_the_log_whether_committed_or_not() -> None:
    log = IngressLog("a", PAIR)
    log.append(b"x", pulse=1, final=True)
    assert log.ended
    log.receive("b", AppendAck(1, 1))
    assert log.ended and log.finished and log.last_pulse == 1
