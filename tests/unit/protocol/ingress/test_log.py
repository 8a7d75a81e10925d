"""The ingress log, case by case; the machine in test_ingress_machine.py covers the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unbroken.errors import InvariantViolation
from unbroken.protocol.ingress import learners as ingress_learners
from unbroken.protocol.ingress.log import (
    Admission,
    Append,
    AppendAck,
    Entry,
    Held,
    InSync,
    JoinLog,
    JoinRefused,
    ProposeInSync,
    Recall,
    Tip,
)
from unbroken.protocol.instructions import CommitEntry, PersistEntry, Send
from unit.protocol.ingress.forced_log import ForcedLog

PAIR = InSync(1, "a", frozenset("ab"), 0)
TRIO = InSync(1, "a", frozenset("abc"), 0)
ALONE = InSync(1, "a", frozenset("a"), 0)


def entry(index: int, term: int = 1, body: bytes = b"x", pulse: int = 0) -> Entry:
    return Entry(index, term, body, pulse)


def test_an_entry_is_committed_when_every_member_has_it() -> None:
    log = ForcedLog("a", TRIO)
    steps = log.append(b"x")
    assert steps == [PersistEntry(entry(1)), Send("b", Append(1, entry(1), 0)), Send("c", Append(1, entry(1), 0))]
    assert log.receive("b", AppendAck(1, 1)) == []
    assert log.receive("c", AppendAck(1, 1))[0] == CommitEntry(entry(1))
    log.check()


def test_a_single_member_commits_at_once() -> None:
    log = ForcedLog("a", InSync(1, "a", frozenset("a"), 0))
    assert log.append(b"x", pulse=1) == [PersistEntry(entry(1, pulse=1)), CommitEntry(entry(1, pulse=1))]
    assert log.last_pulse == 1


def test_a_follower_persists_before_it_acknowledges_and_commits_when_told() -> None:
    log = ForcedLog("b", PAIR)
    assert log.receive("a", Append(1, entry(1), 0)) == [PersistEntry(entry(1)), Send("a", AppendAck(1, 1))]
    assert log.receive("a", Append(1, None, 1)) == [CommitEntry(entry(1))]


def test_an_acknowledgement_that_could_not_be_sent_is_sent_when_the_link_stands() -> None:
    log = ForcedLog("b", PAIR)
    assert log.connected("a") == []
    log.receive("a", Append(1, entry(1), 0))
    assert log.connected("a") == [Send("a", AppendAck(1, 1))]
    assert log.connected("c") == []


def test_only_the_leader_appends() -> None:
    with pytest.raises(InvariantViolation):
        ForcedLog("b", PAIR).append(b"x")


def test_an_entry_that_comes_again_is_acknowledged_again_but_not_written_again() -> None:
    log = ForcedLog("b", PAIR)
    log.receive("a", Append(1, entry(1), 0))
    assert log.receive("a", Append(1, entry(1), 0)) == [Send("a", AppendAck(1, 1))]
    log.receive("a", Append(1, None, 1))
    assert log.receive("a", Append(1, entry(1), 1)) == [Send("a", AppendAck(1, 1))]


def test_an_entry_behind_a_gap_is_not_acknowledged() -> None:
    assert ForcedLog("b", PAIR).receive("a", Append(1, entry(2), 0)) == []


def test_messages_of_an_older_term_are_ignored() -> None:
    log = ForcedLog("b", PAIR)
    log.in_sync(InSync(2, "b", frozenset("b"), 1))
    assert log.receive("a", Append(1, entry(1), 1)) == []
    assert log.receive("a", AppendAck(1, 9)) == []


def test_a_promoted_follower_keeps_what_may_have_been_committed() -> None:
    log = ForcedLog("b", PAIR)
    log.receive("a", Append(1, entry(1), 0))
    [proposal] = log.lost("a")
    assert proposal == ProposeInSync(InSync(2, "b", frozenset("b"), 1), 0)
    assert log.in_sync(proposal.proposal) == [CommitEntry(entry(1))]
    assert log.append(b"y")[0] == PersistEntry(entry(2, 2, b"y"))


def test_a_new_leader_replaces_the_tail_of_another_follower() -> None:
    log = ForcedLog("c", TRIO)
    log.receive("a", Append(1, entry(1), 0))
    log.receive("a", Append(1, entry(2), 0))
    other = entry(1, 2, b"of b")
    log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert log.receive("b", Append(2, other, 0))[0] == PersistEntry(other)
    assert log.entries == [other]


def test_a_leader_is_believed_before_the_store_has_told() -> None:
    """Its messages come once; a follower that drops them would hold every later entry up."""
    log = ForcedLog("c", TRIO)
    steps = log.receive("b", Append(2, entry(1, 2), 0))
    assert steps == [PersistEntry(entry(1, 2)), Send("b", AppendAck(2, 1))]
    assert log.receive("a", Append(1, entry(1), 0)) == [], "the old leader is not"
    assert log.in_sync(InSync(2, "b", frozenset("bc"), 1)) == []
    assert log.sync.version == 1


def test_a_proposal_on_an_outdated_document_is_made_again() -> None:
    log = ForcedLog("c", TRIO)
    log.receive("b", Append(2, None, 0))
    [stale] = log.lost("b")
    assert isinstance(stale, ProposeInSync) and stale.replaces == 0
    [again] = log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert again == ProposeInSync(InSync(3, "c", frozenset("c"), 2), 1)


def test_a_member_lost_while_the_store_decides_is_proposed_afterwards() -> None:
    log = ForcedLog("a", TRIO)
    log.append(b"x")
    assert log.lost("b") == [ProposeInSync(InSync(2, "a", frozenset("ac"), 1), 0)]
    assert log.lost("c") == [], "one proposal at a time"
    steps = log.in_sync(InSync(2, "a", frozenset("ac"), 1))
    assert steps[-1] == ProposeInSync(InSync(3, "a", frozenset("a"), 2), 1)
    assert CommitEntry(entry(1)) in log.in_sync(InSync(3, "a", frozenset("a"), 2))


def test_a_follower_whose_new_leader_is_lost_already_takes_over() -> None:
    log = ForcedLog("c", TRIO)
    assert log.lost("b") == [], "the leader's business"
    [step] = log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    assert step == ProposeInSync(InSync(3, "c", frozenset("c"), 2), 1)


def test_of_two_members_that_lose_each_other_only_one_goes_on() -> None:
    winner = InSync(2, "b", frozenset("b"), 1)
    log = ForcedLog("a", PAIR)
    assert log.lost("b") == [ProposeInSync(InSync(2, "a", frozenset("a"), 1), 0)]
    log.append(b"x")
    assert log.in_sync(winner) == []
    assert not log.leading and log.committed == 0
    assert log.lost("b") == [] and log.connected("b") == []


def test_a_link_that_stands_again_carries_entries_and_the_commit() -> None:
    log = ForcedLog("a", PAIR)
    log.append(b"x")
    log.receive("b", AppendAck(1, 1))
    log.append(b"y")
    second = entry(2, body=b"y")
    assert log.connected("b") == [Send("b", Append(1, second, 1)), Send("b", Append(1, None, 1))]


def test_an_older_document_changes_nothing() -> None:
    log = ForcedLog("a", PAIR)
    log.in_sync(InSync(2, "a", frozenset("a"), 1))
    assert log.in_sync(PAIR) == [] and log.sync.version == 1


def test_the_last_pulse_ends_the_log_whether_committed_or_not() -> None:
    log = ForcedLog("a", PAIR)
    log.append(b"x", pulse=1, final=True)
    assert log.ended
    log.receive("b", AppendAck(1, 1))
    assert log.ended and log.finished and log.last_pulse == 1


# --- learners ---------------------------------------------------------------------------------------------


def admit(log: ForcedLog, peer: str = "b") -> Admission:
    admission, steps = log.learn(peer)
    assert admission is not None and steps == []
    log.check()
    return admission


def led(*bodies: bytes, sync: InSync = ALONE) -> ForcedLog:
    log = ForcedLog("a", sync)
    for body in bodies:
        log.append(body)
    return log


def newcomer(admission: Admission, *entries: Entry, sync: InSync = ALONE) -> ForcedLog:
    return ForcedLog.learner("b", sync, admission, 0, entries, 0, False)


def talk(one: ForcedLog, other: ForcedLog, steps: Sequence[object]) -> list[object]:
    """Carry messages between the two until none is left; what else is to be done comes back."""
    left: list[object] = []
    queue = [(one, step) for step in steps]
    while queue:
        sender, step = queue.pop(0)
        if isinstance(step, Send):
            receiver = other if step.to == other.me else one
            queue += [(receiver, answer) for answer in receiver.receive(sender.me, step.message)]
        else:
            left.append(step)
        one.check()
        other.check()
    return left


def test_a_learner_gets_what_followed_its_copy_and_becomes_a_member() -> None:
    leader = led(b"x")
    learner = newcomer(admit(leader), entry(1))
    leader.append(b"y")
    second = entry(2, body=b"y")
    assert learner.learning and not learner.member and not learner.expelled
    steps = talk(learner, leader, learner.begin())
    proposal = ProposeInSync(InSync(2, "a", frozenset("ab"), 1), 0)
    assert steps == [PersistEntry(second), proposal, CommitEntry(entry(1)), CommitEntry(second)] or set(steps) == {
        PersistEntry(second),
        proposal,
        CommitEntry(entry(1)),
        CommitEntry(second),
    }
    assert leader.append(b"z")[1:] == [Send("b", Append(1, entry(3, body=b"z"), 2))], "no commit without the learner"
    talk(leader, learner, leader.in_sync(proposal.proposal))
    assert leader.committed == 3
    learner.in_sync(proposal.proposal)
    assert learner.member and not learner.learning and learner.committed == 3
    assert learner.lost("a") == [ProposeInSync(InSync(3, "b", frozenset("b"), 2), 1)]


def test_a_learner_with_nothing_to_catch_up_is_taken_in_only_when_it_answers() -> None:
    """Else commits would wait for somebody who cannot be reached."""
    leader = led(b"x")
    admission = admit(leader)
    ask = JoinLog(admission.session, 1)
    assert leader.receive("b", ask) == [Send("b", Append(1, None, 1))]
    assert CommitEntry(entry(2, body=b"y")) in leader.append(b"y")


def test_only_the_leader_gives_out_copies() -> None:
    assert ForcedLog("b", TRIO).learn("d") == (None, [])
    assert led(sync=TRIO).learn("a") == (None, [])


def test_a_member_that_asks_for_a_copy_has_lost_its_log() -> None:
    leader = led(b"x", sync=PAIR)
    assert leader.learn("b") == (None, [ProposeInSync(InSync(2, "a", frozenset("a"), 1), 0)])
    leader.in_sync(InSync(2, "a", frozenset("a"), 1))
    admission = admit(leader)
    assert admission == Admission("a", 1, 2, 1, "2.1")


def test_no_copy_while_the_store_decides_about_the_newcomer() -> None:
    leader, _ = proposed()
    assert leader.learn("b") == (None, [])


def proposed() -> tuple[ForcedLog, ForcedLog]:
    """A leader whose proposal with a learner is on its way, and the learner."""
    leader = led(b"x")
    learner = newcomer(admit(leader), entry(1))
    assert any(isinstance(step, ProposeInSync) for step in talk(learner, leader, learner.begin()))
    return leader, learner


def test_a_learner_lost_while_the_store_decides_is_put_out_afterwards() -> None:
    leader, _ = proposed()
    leader.append(b"y")
    assert leader.lost("b") == [] and leader.committed == 1
    steps = leader.in_sync(InSync(2, "a", frozenset("ab"), 1))
    assert steps[-1] == ProposeInSync(InSync(3, "a", frozenset("a"), 2), 1) and leader.committed == 1
    leader.in_sync(InSync(3, "a", frozenset("a"), 2))
    assert leader.committed == 2


def test_a_learner_lost_before_it_is_proposed_is_forgotten() -> None:
    leader = led(b"x")
    session = admit(leader).session
    leader.receive("b", JoinLog(session, 1))
    assert leader.lost("b") == []
    leader.append(b"y")
    assert leader.learners.retained == []
    assert leader.connected("b") == [Send("b", JoinRefused(session))], "it may not know"


def test_commits_wait_for_a_learner_near_the_end_and_go_on_without_it() -> None:
    leader = led(b"x", sync=PAIR)
    leader.receive("b", AppendAck(1, 1))
    leader.append(b"y")
    session = admit(leader, "c").session
    leader.receive("c", JoinLog(session, 1))
    leader.lost("b")  # its proposal is on its way, so the learner is not proposed yet
    leader.receive("c", AppendAck(1, 1))
    assert leader.receive("b", AppendAck(1, 2)) == []
    assert leader.lost("c")[0] == CommitEntry(entry(2, body=b"y"))


def test_a_set_with_a_learner_that_loses_is_proposed_again() -> None:
    leader, _ = proposed()
    again = leader.in_sync(InSync(2, "a", frozenset("a"), 1))
    assert leader.committed == 1
    assert again == [Send("b", Append(2, None, 1)), ProposeInSync(InSync(3, "a", frozenset("ab"), 2), 1)]


def test_a_member_leaves_and_a_learner_comes_in_one_step() -> None:
    leader = led(b"x", sync=InSync(1, "a", frozenset("ac"), 0))
    leader.receive("c", AppendAck(1, 1))
    session = admit(leader).session
    leader.receive("b", JoinLog(session, 1))
    leader.lost("c")
    assert leader.receive("b", AppendAck(1, 1)) == [], "one proposal at a time"
    steps = leader.in_sync(InSync(2, "a", frozenset("a"), 1))
    assert steps[-1] == ProposeInSync(InSync(3, "a", frozenset("ab"), 2), 1)


def test_two_learners_are_proposed_together_or_one_after_the_other() -> None:
    leader = led(b"x")
    sessions = {peer: admit(leader, peer).session for peer in "bcd"}
    for peer in "bcd":
        leader.receive(peer, JoinLog(sessions[peer], 1))
    [first] = leader.receive("b", AppendAck(1, 1))
    assert isinstance(first, ProposeInSync) and first.proposal.members == set("ab")
    assert leader.receive("c", AppendAck(1, 1)) == leader.receive("d", AppendAck(1, 1)) == []
    second = leader.in_sync(first.proposal)[-1]
    assert isinstance(second, ProposeInSync) and second.proposal.members == set("abcd")


def test_a_leader_that_inherits_a_tail_admits_nobody_who_lacks_it() -> None:
    """The tail may have been committed by the leader before, which alone knew."""
    log = ForcedLog("b", PAIR)
    for index in (1, 2, 3):
        log.receive("a", Append(1, entry(index), 0))
    log.in_sync(InSync(2, "b", frozenset("bc"), 1))
    session = admit(log, "d").session
    log.receive("d", JoinLog(session, 0))
    assert log.committed == 0
    for index in (0, 1, 2):
        assert log.receive("d", AppendAck(2, index)) == []
    [step] = log.receive("d", AppendAck(2, 3))
    assert isinstance(step, ProposeInSync)


def test_a_learner_that_needs_too_much_is_forgotten_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_learners, "LEARNER_ENTRIES", 3)
    monkeypatch.setattr(ingress_learners, "LEARNER_BYTES", 50)
    leader = led(b"x")
    session = admit(leader).session
    for _ in range(3):
        leader.append(b"y")
    assert len(leader.learners.retained) == 3
    assert Send("b", JoinRefused(session)) in leader.append(b"y")
    assert leader.learners.retained == [] and leader.learners.retained_bytes == 0
    session = admit(leader).session
    assert Send("b", JoinRefused(session)) in leader.append(b"y" * 51)
    assert leader.receive("b", JoinLog(session, 5)) == [Send("b", JoinRefused(session))]


def test_a_learner_gets_a_long_log_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_learners, "WINDOW_ENTRIES", 3)
    leader = led()
    learner = newcomer(admit(leader))
    for _ in range(20):
        leader.append(b"y")
    steps = leader.receive("b", JoinLog("1.1", 0))
    assert len(steps) == 3 + 1
    assert leader.append(b"y")[2:] == [Send("b", Append(1, None, 21))]
    talk(leader, learner, steps)
    assert learner.committed == 21


def test_a_big_entry_does_not_stop_a_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_learners, "WINDOW_BYTES", 10)
    leader = led()
    learner = newcomer(admit(leader))
    for size in (50, 1, 50, 9, 1, 1):
        leader.append(b"y" * size)
    talk(learner, leader, learner.begin())
    assert learner.committed == 6


def test_what_an_earlier_copy_left_on_its_way_does_not_count() -> None:
    leader = led(b"x")
    stale = admit(leader)
    leader.receive("b", JoinLog(stale.session, 1))
    leader.append(b"y")
    fresh = admit(leader)
    assert leader.receive("b", AppendAck(1, 2)) == [], "of the earlier copy"
    assert leader.receive("b", JoinLog(stale.session, 2)) == [Send("b", JoinRefused(stale.session))]
    learner = newcomer(fresh, entry(1), entry(2, body=b"y"))
    assert learner.receive("a", JoinRefused(stale.session)) == [] and not learner.refused
    assert learner.receive("a", JoinRefused(fresh.session)) == [] and learner.refused
    assert learner.refused and learner.receive("a", Append(1, entry(3), 3)) == []


def test_a_document_from_before_the_copy_makes_nobody_a_member() -> None:
    """The node was a member once, and lost its disk."""
    learner = ForcedLog.learner("b", PAIR, Admission("a", 0, 3, 2, "3.1"), 0, [], 0, False)
    assert learner.learning and not learner.leading
    assert learner.receive("b", Append(1, entry(1), 1)) == learner.receive("c", Append(2, entry(1), 1)) == []
    learner.in_sync(InSync(2, "a", frozenset("ab"), 1))
    assert learner.learning and learner.lost("a") == []
    learner.in_sync(InSync(3, "a", frozenset("a"), 2))
    assert learner.learning
    learner.in_sync(InSync(4, "a", frozenset("ab"), 3))
    assert learner.member


def test_another_leader_does_not_know_the_learner() -> None:
    learner = newcomer(Admission("a", 1, 1, 0, "1.1"), entry(1), sync=InSync(1, "a", frozenset("ac"), 0))
    other = ForcedLog("c", InSync(1, "a", frozenset("ac"), 0))
    assert other.receive("b", JoinLog("1.1", 1)) == [], "it does not lead yet"
    taken = InSync(2, "c", frozenset("c"), 1)
    assert other.in_sync(taken) == [Send("b", JoinRefused("1.1"))]
    assert learner.in_sync(taken) == [] and learner.refused


def test_a_learner_asks_again_when_its_link_or_its_leader_is_back() -> None:
    learner = newcomer(Admission("a", 1, 1, 0, "1.1"), entry(1))
    ask = [Send("a", JoinLog("1.1", 1))]
    assert learner.begin() == ask and learner.connected("a") == ask and learner.connected("c") == []
    learner.receive("a", Append(1, entry(2), 1))
    assert learner.connected("a") == [Send("a", JoinLog("1.1", 2))]
    assert learner.in_sync(InSync(2, "a", frozenset("a"), 1)) == [Send("a", JoinLog("1.1", 1))], "a term begins anew"


def test_a_learner_goes_on_when_a_term_begins() -> None:
    leader = led(b"x", sync=InSync(1, "a", frozenset("ac"), 0))
    learner = newcomer(admit(leader), sync=leader.sync)
    talk(learner, leader, learner.begin())
    leader.append(b"y")
    leader.lost("c")
    taken = InSync(2, "a", frozenset("a"), 1)
    steps = [*leader.in_sync(taken), *learner.in_sync(taken)]
    proposal = next(step for step in talk(leader, learner, steps) if isinstance(step, ProposeInSync))
    assert proposal.proposal.members == set("ab") and learner.committed == leader.committed == 2


def test_a_leader_that_leads_again_is_not_taken_for_the_one_before() -> None:
    """A learner that is a member without knowing it follows whoever leads, and confirms everything anew."""
    learner = newcomer(Admission("a", 0, 1, 0, "1.1"))
    learner.receive("a", Append(1, entry(1), 0))
    learner.receive("c", Append(3, entry(1, 3), 0))
    learner.receive("c", Append(3, entry(2, 3), 0))
    assert learner.receive("a", Append(5, None, 0)) == [Send("a", AppendAck(5, 0))]


def test_a_copy_with_a_hole_is_not_taken() -> None:
    with pytest.raises(InvariantViolation):
        newcomer(Admission("a", 3, 1, 0, "1.1"), entry(1), entry(2))


def test_what_a_copy_holds_beyond_its_admission_is_not_acknowledged_before_it_is_sent() -> None:
    learner = newcomer(Admission("a", 1, 1, 0, "1.1"), entry(1), entry(2))
    assert learner.last == 2 and learner.begin() == [Send("a", JoinLog("1.1", 1))]
    assert learner.receive("a", Append(1, entry(2), 1)) == [Send("a", AppendAck(1, 2)), CommitEntry(entry(1))]


def test_an_expelled_member_stops_for_good() -> None:
    log = ForcedLog("b", TRIO)
    log.in_sync(InSync(2, "a", frozenset("ac"), 1))
    assert log.expelled and not log.learning
    assert log.receive("a", Append(3, entry(1, 3), 1)) == []
    assert log.connected("a") == log.lost("a") == []


# --- restart ----------------------------------------------------------------------------------------------


def restarted(me: str, sync: InSync, committed: int, *entries: Entry) -> ForcedLog:
    return ForcedLog.recovered(me, sync, committed, entries, 0, False)


def test_a_restarted_leader_begins_a_term_before_it_commits() -> None:
    """A proposal of its earlier life may still be decided, with a learner in it that it would not wait for."""
    log = restarted("a", ALONE, 1, entry(1), entry(2))
    assert not log.leading and log.last == 2
    assert log.learn("b") == (None, []) and log.receive("b", JoinLog("1.1", 1)) == []
    own = InSync(2, "a", frozenset("a"), 1)
    assert log.begin() == [ProposeInSync(own, 0)]
    assert log.in_sync(own) == [Send("b", JoinRefused("1.1")), CommitEntry(entry(2))]
    assert log.leading


def test_a_restarted_leader_finds_the_learner_of_its_earlier_life_in_the_set() -> None:
    log = restarted("a", ALONE, 0, entry(1))
    log.begin()
    log.receive("b", JoinLog("1.1", 1))
    grown = InSync(2, "a", frozenset("ab"), 1)
    assert log.in_sync(grown) == [Send("b", Recall(2))] and not log.leading
    steps = log.receive("b", Held(2, Tip(1, 1), 0))
    assert steps[:2] == [Send("b", Append(2, entry(1), 0)), Send("b", Append(2, None, 0))]
    assert log.leading and log.committed == 0


def test_a_restarted_leader_is_behind_its_follower() -> None:
    follower = ForcedLog("b", PAIR)
    for index in (1, 2, 3):
        follower.receive("a", Append(1, entry(index), 0))
    follower.receive("a", Append(1, None, 2))
    leader = restarted("a", PAIR, 0, entry(1), entry(2), entry(3))
    leader.begin()
    steps = talk(leader, follower, leader.in_sync(InSync(2, "a", frozenset("ab"), 1)))
    assert [step for step in steps if isinstance(step, PersistEntry)] == []
    commits = [step.entry.index for step in steps if isinstance(step, CommitEntry)]
    assert sorted(commits) == [1, 2, 3, 3], "two the follower has committed before, one both commit"
    assert leader.committed == follower.committed == 3


def test_a_restarted_follower_learns_what_is_committed() -> None:
    leader = led(b"x", b"y", sync=PAIR)
    leader.receive("b", AppendAck(1, 2))
    follower = restarted("b", PAIR, 0, entry(1), entry(2, body=b"y"))
    assert follower.begin() == [Send("a", JoinLog("", 0, Tip(1, 2)))]
    steps = talk(follower, leader, follower.begin())
    assert steps == [CommitEntry(entry(1)), CommitEntry(entry(2, body=b"y"))]
    talk(leader, follower, leader.append(b"z"))
    assert leader.committed == follower.committed == 3


def test_everybody_restarts() -> None:
    leader = restarted("a", PAIR, 1, entry(2), entry(3))
    follower = restarted("b", PAIR, 0, entry(1), entry(2))
    leader.begin()
    talk(follower, leader, follower.begin())
    talk(leader, follower, leader.in_sync(InSync(2, "a", frozenset("ab"), 1)))
    assert leader.committed == follower.committed == 3


def test_a_restarted_follower_goes_on_alone() -> None:
    follower = restarted("b", PAIR, 1, entry(2))
    [step] = follower.lost("a")
    assert step == ProposeInSync(InSync(2, "b", frozenset("b"), 1), 0)
    assert follower.in_sync(step.proposal) == [CommitEntry(entry(2))]


def test_pulse_and_end_come_from_the_base() -> None:
    log = ForcedLog.recovered("a", ALONE, 7, [], 3, True)
    assert (log.last, log.last_pulse, log.ended) == (7, 3, True)


def test_a_log_with_a_hole_is_not_recovered() -> None:
    with pytest.raises(InvariantViolation):
        restarted("a", ALONE, 1, entry(3))


def test_a_log_that_begins_in_the_middle_of_a_conversation_waits_for_its_beginning() -> None:
    """In the place of an entry it has missed it may hold that of an earlier leader."""
    sync = InSync(2, "a", frozenset("ab"), 1)
    follower = restarted("b", sync, 0, entry(1), entry(2, body=b"lost"), entry(3, body=b"lost"))
    theirs = [entry(index, 2, b"y") for index in (2, 3)]
    steps = follower.receive("a", Append(2, theirs[1], 1))
    assert steps == [Send("a", JoinLog("", 0, Tip(1, 3))), CommitEntry(entry(1))], "entry 2 is not certain"
    for each in theirs:
        assert follower.receive("a", Append(2, each, 1)) == [PersistEntry(each), Send("a", AppendAck(2, each.index))]
    assert follower.connected("a") == [Send("a", AppendAck(2, 3)), Send("a", JoinLog("", 3, Tip(2, 3)))]
