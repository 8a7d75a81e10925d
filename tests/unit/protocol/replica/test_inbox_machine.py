"""The inbox against a model: a set of numbers and a contiguous front."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from unbroken.protocol.replica.inbox import AHEAD_LIMIT, RECENT_UNITS, Arrival, Inbox
from unbroken.protocol.values.ids import ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("a", 0), ShardId("b", 0))


class InboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(STREAM)
        self.held: dict[int, int] = {}
        self.consumed = 0
        self.accepted: set[int] = set()
        self.done: dict[int, int] = {}

    @rule(ahead=st.one_of(st.integers(-3, 8), st.integers(AHEAD_LIMIT - 2, AHEAD_LIMIT + 2)), content=st.integers(0, 1))
    def arrive(self, ahead: int, content: int) -> None:
        number = max(1, self.consumed + ahead)
        arrival = self.inbox.arrive(UnitHeader(STREAM, number, number, 0, Digest(1, content)))
        if number in self.held:
            same = self.held[number] == content
            assert arrival is (Arrival.DUPLICATE if same else Arrival.DIVERGENT)
        elif number <= self.consumed:
            # Of the last ones it is known what they were.
            recent = number > self.consumed - RECENT_UNITS
            same = self.done[number] == content or not recent
            assert arrival is (Arrival.DUPLICATE if same else Arrival.DIVERGENT)
        elif number > self.consumed + AHEAD_LIMIT:
            assert arrival is Arrival.REFUSED
        else:
            assert arrival is Arrival.ACCEPTED
            assert number not in self.accepted, "a unit was accepted twice"
            self.accepted.add(number)
            self.held[number] = content

    @rule(share=st.floats(0, 1))
    def consume(self, share: float) -> None:
        through = self.consumed + int((self._front() - self.consumed) * share)
        dropped = self.inbox.consume(through)
        assert dropped == [number for number in sorted(self.held) if number <= through]
        for number in dropped:
            self.done[number] = self.held.pop(number)
        self.consumed = max(self.consumed, through)

    @rule(ahead=st.integers(-2, 8))
    def lose(self, ahead: int) -> None:
        number = self.consumed + ahead
        assert self.inbox.lose(number) == (self.held.pop(number, None) is not None)
        self.accepted -= {number} - self.done.keys()

    @invariant()
    def agrees(self) -> None:
        self.inbox.check()
        assert self.inbox.consumed == self.consumed
        assert self.inbox.available == self._front()
        assert set(self.inbox.headers) == set(self.held)
        assert len(self.inbox.recent) <= RECENT_UNITS

    def _front(self) -> int:
        number = self.consumed
        while number + 1 in self.held:
            number += 1
        return number


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
