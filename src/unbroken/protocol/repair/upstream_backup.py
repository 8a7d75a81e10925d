"""Upstream backup: which input a segment still needs from its producers, and when they may let it go.

No state is copied. A spare begins with nothing and processes again what the producers have kept, so they must keep
whatever can still show in results that are not safe further down. Level by level, an acknowledgement for an output
unit becomes one for the input that caused it, and only neighbours talk to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.events import Produced
from unbroken.protocol.instructions import Instruction, Send
from unbroken.protocol.messages import Ack
from unbroken.protocol.output.acknowledgement_levels import needed_levels
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.repair.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.ids import ReplicaId
from unbroken.protocol.values.strategy import STATELESS, Strategy
from unbroken.protocol.values.units import UnitHeader

if TYPE_CHECKING:
    from unbroken.protocol.machine import NodeProtocol

UNSAID = (0, FROM_THE_FIRST)
"""Nothing was acknowledged yet at a level."""


@dataclass
class Causes:
    """The offset indicators of one replica: from an output unit to the first input unit that still matters.

    ``marks`` holds, for each unit, the time that was in force while it was processed: the watermark, or the time of its
    cut. Time never goes back. A row is forgotten by the state when time has moved ``horizon_ms`` past what it was when
    the row came.

    A spare does not know the watermark that earlier rows had moved, and at first takes rows for on time that were late.
    That does no harm: the unit that moved the watermark to where it was when the results begin to count is among those
    that are processed again, and with it such rows are forgotten.

    Units that were taken together have all their results in the last one, so the first of them matters until that one
    is safe. ``folded`` maps the last of them to the first; to 1 if that is not known.

    Invariant: marks are dense. What has no mark any more, or not yet again after a restart, is taken to matter.
    """

    strategy: Strategy
    marks: dict[int, float] = field(default_factory=dict)
    folded: dict[int, int] = field(default_factory=dict)

    def note(self, number: int, time_ms: float) -> None:
        """Unit ``number`` is processed at ``time_ms``. Units that are processed again have the time they had."""
        if self.strategy.horizon_ms == STATELESS or number in self.marks:
            return
        if self.marks and number != max(self.marks) + 1:
            self.marks.clear()
        self.marks[number] = time_ms

    def before(self, through: int) -> int:
        """Input up to this unit does not matter for any result after ``through``; 0 while that cannot be told."""
        if self.strategy.horizon_ms == STATELESS:
            return next((first - 1 for last, first in self.folded.items() if first <= through < last), through)
        if through not in self.marks:
            return 0
        return self._timed(through) if self.strategy.timed else self._by_cut(through)

    def forget(self, through: int) -> None:
        """No question about earlier units will come."""
        for number in [n for n in self.marks if n < through]:
            del self.marks[number]
        for last in [last for last in self.folded if last <= through]:
            del self.folded[last]

    def check(self) -> None:
        numbers = sorted(self.marks)
        require(numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else True, "marks have a hole")

    def _timed(self, through: int) -> int:
        limit = self.marks[through] - self.strategy.horizon_ms
        oldest = min(self.marks)
        if self.marks[oldest] > limit:
            return 0
        # The watermark in force for unit n + 1 is what unit n has moved it to.
        return next((n for n in range(oldest, through) if self.marks[n + 1] > limit), through) - 1

    def _by_cut(self, through: int) -> int:
        limit = self.marks[through] - self.strategy.horizon_ms
        oldest = min(self.marks)
        first = next(n for n in range(oldest, through + 1) if self.marks[n] > limit)
        return first - 1 if first > oldest else 0


@dataclass
class UpstreamBackup:
    """The acknowledgements that the replicas here send on behalf of their own consumers.

    Invariant: at level j nothing is acknowledged whose effects are not acknowledged at level j - 1 by every consumer.
    """

    node: NodeProtocol
    causes: dict[ReplicaId, Causes] = field(default_factory=dict)
    said: dict[ReplicaId, list[tuple[int, Rebuilt]]] = field(default_factory=dict)

    def open(self, replica: ReplicaId) -> None:
        strategy = self.node.topology.strategy(replica.shard.part)
        levels = self._levels(replica)
        if levels:
            self.causes[replica] = Causes(strategy)
            self.said[replica] = [UNSAID] * levels

    def layout_changed(self) -> None:
        """Nodes host other segments now, so that other levels may be needed."""
        for replica, said in self.said.items():
            self.said[replica] = [*said, *[UNSAID] * self._levels(replica)][: self._levels(replica)]

    def close(self, replica: ReplicaId) -> None:
        self.causes.pop(replica, None)
        self.said.pop(replica, None)

    def stored(self, replica: ReplicaId, headers: Iterable[UnitHeader]) -> None:
        """What an earlier process has left: which units of a micro-batch are gone already, nobody knows."""
        if replica in self.causes:
            self.causes[replica].folded |= {header.fold: 1 for header in headers if header.fold}

    def produced(self, event: Produced, time_ms: float | None) -> None:
        """``time_ms``: see ``Causes``; None if several units were processed together, whose times nobody knows."""
        causes = self.causes.get(event.replica)
        if causes is None:
            return
        if time_ms is None:
            causes.marks.clear()
        else:
            causes.note(event.number, time_ms)
        together = [header.number for header in event.headers if header.fold == event.number]
        if together:
            causes.folded[event.number] = min(together)

    def acks(self) -> list[Instruction]:
        """What can be acknowledged further than it was."""
        out: list[Instruction] = []
        for replica, causes in self.causes.items():
            boxes = self.node.outboxes.of(replica)
            said = self.said[replica]
            for level in range(1, len(said) + 1):
                valid = min((box.bound(level - 1) for box in boxes), default=0)
                # A unit's effects may be safe before it is committed here, and then it may have to be processed again.
                through = min(causes.before(valid), self.node.replicas[replica].committed)
                if through >= said[level - 1][0] + self.node.settings.ack_every:
                    said[level - 1] = (through, self._rebuilt(boxes, level - 1, valid))
                    out += self._send(replica, level, *said[level - 1])
            causes.forget(said[-1][0])
        return out

    def repeat(self, replica: ReplicaId, to: str) -> list[Instruction]:
        """The same again to a node that may have missed it."""
        return [
            step
            for level, (through, rebuilt) in enumerate(self.said.get(replica, ()), start=1)
            if through
            for step in self._send(replica, level, through, rebuilt, (to,))
        ]

    def check(self) -> None:
        for causes in self.causes.values():
            causes.check()

    def _levels(self, replica: ReplicaId) -> int:
        return needed_levels(self.node.topology, self.node.layout, replica.shard.part)

    @staticmethod
    def _rebuilt(boxes: Iterable[Outbox], level: int, valid: int) -> Rebuilt:
        """What a replica is worth that is rebuilt with the right results after ``valid``, up to which its consumers
        have acknowledged at ``level``: those that rely on it can be lost with it, and be rebuilt from these."""
        relying = [box for box in boxes if level and box.levels]
        return Rebuilt(valid, tuple(sorted((box.stream.consumer, box.rebuilt_at(level)) for box in relying)))

    def _send(
        self, replica: ReplicaId, level: int, through: int, rebuilt: Rebuilt, nodes: Sequence[str] | None = None
    ) -> list[Instruction]:
        return [
            Send(node, Ack(stream, str(replica), through, level, rebuilt))
            for stream in self.node.topology.inputs(replica.shard)
            for node in sorted(self.node.subscriptions.producers(stream))
            if nodes is None or node in nodes
        ]
