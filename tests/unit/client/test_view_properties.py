"""Whatever order units come in from whichever nodes: what a reader is given keeps the rules."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from unbroken.client import Reconciled, Result, Undo
from unbroken.client.arrivals import Arrivals
from unbroken.client.tentative_view import SubscriptionEvent
from unbroken.data.unit_store import encode_unit
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.units import Digest, UnitHeader

STREAM = StreamId.parse("totals.0>live.0")
FORK = StreamId.parse("totals~.0>live.0")
NODES = ("a", "b", "c")
SILENCE_S = 1.0
TABLE = pa.table({"n": [1]})
nodes = st.sampled_from(NODES)


class Readers(RuleBasedStateMachine):
    """Nodes with the same stable units and their own tentative ones, and what a reader of all of them is given."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = Arrivals([STREAM], 0, stable_only=False, silence_s=SILENCE_S)
        self.now = 0.0
        self.made = 0  # stable units that there are
        self.final = False
        self.sent: dict[str, int] = {}  # by node: the last stable unit that it has sent
        self.heard: dict[str, int] = {}  # by node: the highest tentative pulse that it has sent
        self.given: list[SubscriptionEvent] = []
        self.results: list[Result] = []
        self.stable = self.reach = 0
        self.open = False  # between Undo and Reconciled
        self.pulses: set[int] = set()  # those that tentative results have covered
        for node in NODES:
            self.link(node)

    # --- what nodes do

    @precondition(lambda self: not self.final)
    @rule(count=st.integers(1, 4), final=st.integers(0, 30))
    def produce(self, count: int, final: int) -> None:
        self.made += count
        self.final = final == 0

    @rule(node=nodes, count=st.integers(1, 6))
    def send_stable(self, node: str, count: int) -> None:
        for number in range(self.sent.get(node, 0) + 1, min(self.made, self.sent.get(node, 0) + count) + 1):
            if node in self.sent:
                self.sent[node] = number
                last = self.final and number == self.made
                self.come(node, UnitHeader(STREAM, number, number, 0, Digest(1, number), final=last))

    @rule(node=nodes, since=st.integers(-3, 3), length=st.integers(1, 4))
    def send_tentative(self, node: str, since: int, length: int) -> None:
        """Mostly right behind what the node has sent, now and then with a hole or an overlap."""
        if node not in self.heard:
            return
        begin = max(0, max(self.heard[node], self.sent[node]) + since // 2)
        pulse = max(begin, self.heard[node]) + length
        self.heard[node] = pulse
        header = UnitHeader(FORK, 7, pulse, 0, Digest(1, ord(node)), stable=False, since=begin)
        self.come(node, header)

    @rule(node=nodes)
    def lose(self, node: str) -> None:
        self.arrivals.lost(node)
        self.sent.pop(node, None)
        self.heard.pop(node, None)

    @rule(node=nodes)
    def link(self, node: str) -> None:
        if node not in self.sent:
            self.sent[node], self.heard[node] = self.arrivals.wanted(STREAM)

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.arrivals.tick(self.now))

    # --- what the reader sees

    def come(self, node: str, header: UnitHeader) -> None:
        self.now += 0.01
        self.take(self.arrivals.unit(node, header, encode_unit(header, TABLE), 0.0, self.now))

    def take(self, events: list[SubscriptionEvent]) -> None:
        for event in events:
            self.judge(event)
            self.given.append(event)

    def judge(self, event: SubscriptionEvent) -> None:
        match event:
            case Result() if event.stable:
                assert event.header.number == self.stable + 1 and event.header.stream == STREAM
                last = max(self.pulses, default=0)
                covered = self.stable + 1 in self.pulses or (event.header.final and last > self.stable)
                assert event.correction == covered
                assert self.open or not covered, "a correction without a word before it"
                self.stable += 1
            case Result():
                assert event.header.stream == STREAM and event.header.pulse > self.reach
                assert not any(result.header.final for result in self.results)
                self.pulses |= set(range(event.header.since + 1, event.header.pulse + 1))
            case Undo():
                assert not self.open and event.after_pulse == self.stable
                self.open = True
            case Reconciled():
                assert self.open and event.pulse == self.stable
                result = self.results[-1]
                assert result is self.given[-1] and result.correction
                assert result.header.final or max(self.pulses) <= self.stable
                self.open = False
        if isinstance(event, Result):
            self.results.append(event)
            self.reach = max(self.reach, event.header.pulse)

    @invariant()
    def undo_stands_right_before_a_correction(self) -> None:
        *_, before, behind = [None, None, *self.given]
        assert not isinstance(behind, Undo)
        assert not isinstance(before, Undo) or (isinstance(behind, Result) and behind.correction)

    @invariant()
    def open_until_nothing_tentative_stands(self) -> None:
        if self.open:
            assert max(self.pulses) > self.stable and not self.arrivals.ended

    def teardown(self) -> None:
        """In the end all stable units come, and what any node has sent that is still new is given out."""
        for _ in NODES:
            self.wait(2 * SILENCE_S)
        assert not self.arrivals.views[STREAM].held, "something waits for ever"
        self.link("a")
        self.send_stable("a", self.made + 1)
        numbers = [event.header.number for event in self.given if isinstance(event, Result) and event.stable]
        assert numbers == list(range(1, self.made + 1))
        assert self.arrivals.ended == self.final


Readers.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestReaders = Readers.TestCase
