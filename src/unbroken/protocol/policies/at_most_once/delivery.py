"""Delivery in turns: a unit is handed to a sink by one replica, once, or by none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.errors import require
from unbroken.protocol.events import SinkFailed
from unbroken.protocol.instructions import Instruction, Report
from unbroken.protocol.output.generation_switch import GenerationSwitch
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.output.sinks import Sinks
from unbroken.protocol.policy import EventHandler, Policy
from unbroken.protocol.replica.reports import Reports
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices.sinks import UnitGivenUp, UnitsUncertain
from unbroken.protocol.values.turns import Verdict

TURN_BACKLOG = 2
"""Units that may wait for a sink: what waits is lost with the one who has the turn, so little is cut as long as nothing
is delivered."""


@dataclass
class AtMostOnce(Policy):
    """Lets replicas take turns in delivering.

    A process that begins with what an earlier one has left never hands over itself what that one may have tried.
    ``given_up`` are the first and the last unit that were not delivered for such a reason and are still to be told of.

    Invariant: a unit is handed over only by the replica that has the turn for it, and only once.
    """

    around: Surroundings
    outboxes: Outboxes
    sinks: Sinks
    generation_switch: GenerationSwitch
    reports: Reports
    given_up: dict[StreamId, tuple[int, int]] = field(default_factory=dict)

    def events(self) -> Mapping[type[Any], EventHandler]:
        return {SinkFailed: self.sink_failed}

    def check(self) -> None:
        for stream, (first, last) in self.given_up.items():
            require(1 <= first <= last, f"units {first} to {last} of {stream} are given up")
            delivery = self.sinks.deliveries.get(stream)
            require(delivery is None or last <= delivery.delivered, f"unit {last} of {stream} is given up and to come")

    def unhosted(self, replica: ReplicaId) -> None:
        self.given_up = {stream: units for stream, units in self.given_up.items() if stream.producer != replica.shard}

    def backlog(self) -> int | None:
        return TURN_BACKLOG if self._in_turns else None

    def stamp(self) -> int:
        return self.around.layout.version if self._in_turns else 0

    def verdict(self, stream: StreamId) -> Verdict | None:
        """What to do with the next unit at this moment, by whose turn it is."""
        if not self._in_turns:
            return None
        delivery, layout = self.sinks.deliveries[stream], self.around.layout
        turn = layout.turns.get(stream.producer)
        header = self.outboxes.boxes[stream].headers.get(delivery.delivered + 1)
        if turn is None or header is None:
            return Verdict.WAIT
        if delivery.delivering is not None or not self.generation_switch.may_deliver(stream):
            return Verdict.WAIT
        verdict = turn.verdict(self.outboxes.owners[stream], header, layout.version)
        tried = header.number <= self.sinks.tried[stream]
        return Verdict.GIVE_UP if verdict is Verdict.DELIVER and tried else verdict

    def sink_failed(self, event: SinkFailed, _now_ms: float) -> list[Instruction]:
        """A sink that failed with a unit may have it all the same."""
        self.around.counters["units_given_up"] += 1
        notice = UnitGivenUp(event.stream, event.number, event.reason)
        return [Report(notice), *self.reports.sink_took(event.stream, event.number)]

    def tick(self, _now_ms: float) -> list[Instruction]:
        """Units that may have been delivered, by whoever had the turn before, are done with."""
        out: list[Instruction] = []
        for stream in list(self.sinks.deliveries) if self._in_turns else ():
            count, steps = self.give_up(stream)
            out += steps
            if count:
                self.around.counters["units_given_up"] += count
                out += [*self.reports.progress_of(stream), *self.reports.delivered(stream)]
        return out

    def give_up(self, stream: StreamId) -> tuple[int, list[Instruction]]:
        """Pass over the units that come next and that nobody may deliver; how many, and what follows."""
        out: list[Instruction] = []
        delivery, count = self.sinks.deliveries[stream], 0
        while (verdict := self.verdict(stream)) is Verdict.GIVE_UP:
            number = delivery.delivered + 1
            final = self.outboxes.boxes[stream].headers[number].final
            delivery.pass_over(number)
            first, _ = self.given_up.get(stream, (number, number))
            self.given_up[stream] = (first, number)
            count += 1
            out += self._tell(stream) if final else []
        if verdict is Verdict.DELIVER:
            out += self._tell(stream)
        return count, [*(self.sinks.delivered(stream, delivery.delivered) if count else []), *out]

    def _tell(self, stream: StreamId) -> list[Instruction]:
        """The notice about the units that were given up, once the last of them is known."""
        found = self.given_up.pop(stream, None)
        return [] if found is None else [Report(UnitsUncertain(stream, *found))]

    @property
    def _in_turns(self) -> bool:
        return self.around.topology.at_most_once
