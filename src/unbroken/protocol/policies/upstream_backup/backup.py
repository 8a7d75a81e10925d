"""Upstream backup: which input a segment still needs from its producers, and when they may let it go.

No state is copied. A spare begins with nothing and processes again what the producers have kept, so they must keep
whatever can still show in results that are not safe further down. Level by level, an acknowledgement for an output
unit becomes one for the input that caused it, and only neighbours talk to each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from unbroken.protocol.events import Produced
from unbroken.protocol.instructions import Instruction, NoteOwed, Report, ReportCaughtUp, Send
from unbroken.protocol.messages import Ack
from unbroken.protocol.output.outbox import Outbox
from unbroken.protocol.output.outboxes import Outboxes
from unbroken.protocol.policies.upstream_backup.instructions import BeginReplica
from unbroken.protocol.policies.upstream_backup.levels import needed_levels
from unbroken.protocol.policy import Policy
from unbroken.protocol.policy_set import Policies
from unbroken.protocol.repair.catchup import CatchUp, Phase
from unbroken.protocol.repair.newcomers import Newcomers
from unbroken.protocol.replica.causes import Causes
from unbroken.protocol.replica.hosting import Hosting
from unbroken.protocol.replica.replica import SegmentReplica
from unbroken.protocol.replica.roster import Roster
from unbroken.protocol.surroundings import Surroundings
from unbroken.protocol.values.ids import NodeId, ReplicaId, generation_of
from unbroken.protocol.values.notices.replicas import RebuildImpossible
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.strategy import Ha
from unbroken.protocol.values.units import UnitHeader

UNSAID = (0, FROM_THE_FIRST)
"""Nothing was acknowledged yet at a level."""


@dataclass
class UpstreamBackup(Policy):
    """The acknowledgements that the replicas here send on behalf of their own consumers.

    Invariant: at level j nothing is acknowledged whose effects are not acknowledged at level j - 1 by every consumer.
    """

    around: Surroundings
    roster: Roster
    outboxes: Outboxes
    hosting: Hosting
    newcomers: Newcomers
    policies: Policies
    causes: dict[ReplicaId, Causes] = field(default_factory=dict)
    said: dict[ReplicaId, list[tuple[int, Rebuilt]]] = field(default_factory=dict)

    def levels(self, part: str) -> int:
        return needed_levels(self.around.topology, self.around.layout, part)

    def rebuilds(self, part: str) -> bool:
        return self.around.topology.strategy(part).ha is Ha.UPSTREAM

    def hosted(self, replica: ReplicaId) -> list[Instruction]:
        strategy = self.around.topology.strategy(replica.shard.part)
        levels = self._levels(replica)
        if levels:
            self.causes[replica] = Causes(strategy)
            self.said[replica] = [UNSAID] * levels
        return []

    def layout_changed(self, _placed: Collection[ReplicaId], _now_ms: float) -> list[Instruction]:
        """Nodes host other segments now, so that other levels may be needed."""
        for replica, said in self.said.items():
            self.said[replica] = [*said, *[UNSAID] * self._levels(replica)][: self._levels(replica)]
        return []

    def unhosted(self, replica: ReplicaId) -> None:
        self.causes.pop(replica, None)
        self.said.pop(replica, None)

    def stored(self, replica: ReplicaId, headers: Iterable[UnitHeader]) -> None:
        """What an earlier process has left: which units of a micro-batch are gone already, nobody knows."""
        if replica in self.causes:
            self.causes[replica].folded |= {header.fold: 1 for header in headers if header.fold}

    def processed(self, replica: SegmentReplica, event: Produced) -> None:
        causes = self.causes.get(event.replica)
        if causes is None:
            return
        together = event.folded
        if together or replica.alone(event.number):
            causes.note(event.number, self._time_of(event), min(together, default=event.number))
        else:
            causes.unknown()

    def _time_of(self, event: Produced) -> float:
        """By what the state of a segment forgets: its watermark, or the time of the cut."""
        if self.around.topology.strategy(event.replica.shard.part).timed:
            return event.watermark_ms
        return max((header.cut_ms for header in event.headers), default=0.0)

    def tick(self, _now_ms: float) -> list[Instruction]:
        """What can be acknowledged further than it was."""
        out: list[Instruction] = []
        for replica, causes in self.causes.items():
            boxes = self.outboxes.of(replica)
            said = self.said[replica]
            for level in range(1, len(said) + 1):
                valid = min((box.bound(level - 1) for box in boxes), default=0)
                # A unit's effects may be safe before it is committed here, and then it may have to be processed again.
                through = min(causes.before(valid), self.roster.replicas[replica].committed)
                if through >= said[level - 1][0] + self.around.settings.ack_every:
                    said[level - 1] = (through, self._rebuilt(boxes, level - 1, valid))
                    out += self._send(replica, level, *said[level - 1])
            causes.forget(said[-1][0])
        return out

    def done_with(self, replica: ReplicaId) -> tuple[int, Rebuilt] | None:
        said = self.said.get(replica)
        return said[-1] if said else None

    def report(self, replica: ReplicaId, to: NodeId) -> list[Instruction]:
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

    # --- newcomers ------------------------------------------------------------------------------------

    def anew(self, join: CatchUp, now_ms: float) -> list[Instruction] | None:
        """Let a replica begin with what its producers have kept, where nobody has its state."""
        layout, shard = self.around.layout, join.replica.shard
        if not self.rebuilds(shard.part) or layout.full(shard) or layout.generation < generation_of(shard.part):
            return None
        if join.phase is Phase.CATCHING_UP and self.newcomers.keeps_up(join):
            return [ReportCaughtUp(join.replica, join.finish(now_ms))]
        found = join.begin_anew(self.newcomers.producers(join), now_ms)
        if found is None:
            return self._complain(join)
        base, rebuilt = self._known_from_colleagues(join, *found)
        return [BeginReplica(join.replica, base, rebuilt.valid, self._owed_below(join.replica, rebuilt))]

    def _owed_below(self, replica: ReplicaId, rebuilt: Rebuilt) -> tuple[NoteOwed, ...]:
        """What its results after the first ones that are right are good for: they rebuild consumers lost with it."""
        known = [(stream, rebuilt.of(stream.consumer)) for stream in self.around.topology.outputs(replica.shard)]
        return tuple(NoteOwed(replica, stream, rebuilt.valid, below) for stream, below in known if below is not None)

    def _known_from_colleagues(self, join: CatchUp, base: int, rebuilt: Rebuilt) -> tuple[int, Rebuilt]:
        """What the lost one was done with, if its colleagues know better than its producers."""
        known = self.policies.known_start(join.replica.shard)
        if known is None or known[0] <= base:
            return base, rebuilt
        return known[0], rebuilt.merged(known[1])

    def _complain(self, join: CatchUp) -> list[Instruction]:
        """Report once that a replica waits, and for what."""
        short = join.lacking()
        if not short or join.complained:
            return []
        join.complained = True
        return [Report(RebuildImpossible(join.replica, tuple(short)))]

    def _levels(self, replica: ReplicaId) -> int:
        return self.levels(replica.shard.part)

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
            for stream in self.around.topology.inputs(replica.shard)
            for node in sorted(self.around.producers(stream))
            if nodes is None or node in nodes
        ]
