"""The outbox against a model that keeps everything and trims by definition."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from unbroken.protocol.output.outbox import SEND_WINDOW, Outbox
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId(ShardId("a", 0), ShardId("b", 0))
CONSUMERS = [ReplicaId(STREAM.consumer, i) for i in range(3)]
NAMES = [*(str(consumer) for consumer in CONSUMERS), "client-1"]


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(STREAM, frozenset(CONSUMERS))
        self.produced = 0
        self.dropped = 0
        self.counted = set(CONSUMERS)
        self.acks = dict.fromkeys(NAMES, 0)
        self.received: dict[str, list[int]] = {}

    @rule(units=st.integers(1, 100))
    def produce(self, units: int) -> None:
        for _ in range(units):
            self.produced += 1
            assert self.outbox.add(_unit(self.produced))
            assert not self.outbox.add(_unit(self.produced)), "a unit was taken twice"
        self._exchange()

    @rule(name=st.sampled_from(NAMES))
    def subscribe(self, name: str) -> None:
        """A consumer replica asks from where it is; it may have got more than it acknowledged."""
        start = max([self.acks[name], *self.received.get(name, [])])
        complete = self.outbox.subscribe(name, start)
        assert complete or not self._counts(name), "a unit was dropped that a counted replica asks for"
        self.received[name] = [max(start, self.dropped)]
        self._exchange()

    @rule(name=st.sampled_from(NAMES))
    def unsubscribe(self, name: str) -> None:
        self.outbox.unsubscribe(name)
        self.received.pop(name, None)

    @rule(name=st.sampled_from(NAMES), ahead=st.integers(-5, 30))
    def ack(self, name: str, ahead: int) -> None:
        """Acknowledge up to, or beyond, what has come from here: a sibling may be faster."""
        through = max(0, max(self.received.get(name, [0])) + ahead)
        self.outbox.ack(name, through)
        self.acks[name] = max(self.acks[name], through)
        self._exchange()

    @rule(gone=st.sampled_from(CONSUMERS))
    def uncount(self, gone: ReplicaId) -> None:
        self.counted.discard(gone)
        self.outbox.count(frozenset(self.counted))
        self._exchange()

    @invariant()
    def trimmed_exactly(self) -> None:
        self.outbox.check()
        owed = min((self.acks[str(consumer)] for consumer in self.counted), default=self.produced)
        assert self.outbox.base == max(self.dropped, min(owed, self.produced))
        assert list(self.outbox.headers) == list(range(self.outbox.base + 1, self.produced + 1))

    def _exchange(self) -> None:
        for name, number in self.outbox.sends():
            assert number in self.outbox.headers, f"{name} is sent unit {number}, which is dropped"
            got = self.received[name]
            assert number > got[-1] and number > self.acks[name], f"{name} is sent {number} needlessly"
            if self._counts(name):
                assert number == max(got[-1], self.acks[name]) + 1, f"{name} misses a unit before {number}"
                assert number <= self.acks[name] + SEND_WINDOW
            got.append(number)
        self.dropped += len(self.outbox.trim())

    def _counts(self, name: str) -> bool:
        return any(str(consumer) == name for consumer in self.counted)


def _unit(number: int) -> UnitHeader:
    return UnitHeader(STREAM, number, number, 0, Digest(1, number))


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
