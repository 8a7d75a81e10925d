"""Simulated disks: what a replica's directory holds, and what is recovered from it after a restart or a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.node.ingress.buckets import BucketState
from unbroken.protocol.ingress.log import Admission, Entry
from unbroken.protocol.instructions import PinState
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.replica.cuts import Cut
from unbroken.protocol.replica.recovery import LogState, ReplicaState, StoredUnits
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Files, Folded, State

VERSIONS = 100
"""Versions of a state that are kept, like Spark does."""


@dataclass(slots=True)
class ReplicaDisk:
    """The directory of one replica: a checkpoint with its versions, inbox, outbox and the log of the ingress.

    The log begins after ``base``, which is the entry of pulse ``base_pulse`` with ``base_body``. Where units are
    buckets of event time, ``lanes`` has how far each source had come with it. Up to unit ``valid`` the results are not
    for anybody, because the state was still being built.
    """

    committed: int = 0
    states: dict[int, State] = field(default_factory=lambda: {0: Folded()})
    inbox: Files = field(default_factory=dict)
    outbox: Files = field(default_factory=dict)
    log: dict[int, Entry] = field(default_factory=dict)
    base: int = 0
    base_pulse: int = 0
    base_body: bytes = b""
    lanes: Mapping[str, BucketState] = field(default_factory=dict)
    finished: bool = False
    valid: int = 0
    owed: dict[StreamId, tuple[int, Rebuilt]] = field(default_factory=dict)
    cuts: dict[int, Cut] = field(default_factory=dict)
    admission: Admission | None = None
    state_bytes: int = 0

    def commit(self, number: int, state: State, cut: Cut) -> None:
        """A micro-batch is part of the state."""
        self.states[number] = state
        self.cuts[number] = cut
        self.committed = number
        if len(self.states) > 2 * VERSIONS:
            for old in sorted(self.states)[:-VERSIONS]:
                del self.states[old]
                self.cuts.pop(old, None)

    def persist(self, entry: Entry) -> None:
        """An entry written again replaces the earlier one and all that followed it."""
        if self.log.get(entry.index) != entry:
            for index in [index for index in self.log if index >= entry.index]:
                del self.log[index]
            self.log[entry.index] = entry

    def lose_tail(self, count: int) -> int:
        """So many of the last entries of the log are gone, although they were on disk; how many there were to lose."""
        doomed = sorted(self.log)[len(self.log) - min(count, len(self.log)) :]
        for index in doomed:
            del self.log[index]
        return len(doomed)

    def trim_log(self, pulse: int) -> None:
        """The units of ``pulse`` and all before it are needed by nobody."""
        if pulse <= self.base_pulse:
            return
        done = [entry for entry in self.log.values() if entry.pulse and entry.pulse <= pulse]
        if done:
            self.rebase(max(done, key=lambda entry: entry.index), {})

    def rebase(self, entry: Entry, lanes: Mapping[str, BucketState]) -> None:
        """The log begins after an entry."""
        self.base, self.base_pulse, self.finished, self.base_body = entry.index, entry.pulse, entry.final, entry.body
        self.lanes = lanes
        self.log = {index: later for index, later in self.log.items() if index > entry.index}

    def pin(self, step: PinState) -> ReplicaDisk:
        """What a newcomer is given: the state at a version, and the units of the outbox that go with it."""
        outbox = {
            (stream, n): self.outbox[stream, n] for stream, base, last in step.units for n in range(base + 1, last + 1)
        }
        if step.replica.shard != INGRESS:
            return ReplicaDisk(
                committed=step.version,
                states={step.version: self.states[step.version]},
                outbox=outbox,
                valid=self.valid,
                owed=dict(self.owed),
                cuts={step.version: self.cuts[step.version]} if step.version in self.cuts else {},
                state_bytes=self.state_bytes,
            )
        return ReplicaDisk(
            outbox=outbox,
            log=dict(self.log),
            base=self.base,
            base_pulse=self.base_pulse,
            base_body=self.base_body,
            lanes=self.lanes,
            finished=self.finished,
            owed=dict(self.owed),
            admission=step.admission,
        )

    @property
    def size(self) -> int:
        """Bytes that a copy of it takes."""
        return self.state_bytes + sum(header.size for header, _ in self.outbox.values())

    def taken(self, stream: StreamId) -> int:
        """The last unit of an input that is part of the committed state."""
        cut = self.cuts.get(self.committed)
        return cut[stream].unit if cut and stream in cut else self.committed

    def newest(self) -> int:
        """The newest unit that may have left a segment's replica before its process ended."""
        processed = any(number == self.committed + 1 for _, number in self.inbox)
        return max([self.committed + processed, *(number for _, number in self.outbox)])

    def recover(self, replica: ReplicaId) -> ReplicaState:
        """As after a restart: what is superseded is removed, the rest is read back."""
        if replica.shard == INGRESS:
            entries = tuple(self.log[index] for index in sorted(self.log))
            tops = {source: state.top for source, state in self.lanes.items()}
            log = LogState(self.base, entries, self.base_pulse, self.finished, self.admission, tops)
            self.admission = None  # known to the process that has received the copy, and to no later one
            return ReplicaState(self.base_pulse, self._stored(), log=log)
        taken = self.cuts.get(self.committed) or {}
        kept = {key: unit for key, unit in self.inbox.items() if key[0].home == key[0] and key[1] > self.taken(key[0])}
        self.inbox = kept
        inboxes: dict[StreamId, list[UnitHeader]] = {}
        for (stream, _), (header, _) in sorted(kept.items(), key=lambda item: (str(item[0][0]), item[0][1])):
            inboxes.setdefault(stream, []).append(header)
        units = {stream: tuple(headers) for stream, headers in inboxes.items()}
        return ReplicaState(self.committed, self._stored(), units, valid=self.valid, taken=taken)

    def begun(self, stream: StreamId) -> int:
        """After which unit the outbox of a stream begins if there is none in it."""
        lane = self.lanes.get(stream.producer.part)
        return max(self.committed, self.valid, self.base_pulse) if lane is None else lane.top

    def stored_base(self, stream: StreamId) -> int:
        """After which unit the outbox of a stream begins."""
        return min((n for s, n in self.outbox if s == stream), default=self.begun(stream) + 1) - 1

    def _stored(self) -> Mapping[StreamId, StoredUnits]:
        found: dict[StreamId, list[UnitHeader]] = {stream: [] for stream in self.owed}
        for (stream, _), (header, _) in self.outbox.items():
            found.setdefault(stream, []).append(header)
        out: dict[StreamId, StoredUnits] = {}
        for stream, headers in sorted(found.items()):
            headers.sort(key=lambda header: header.number)
            first = headers[0].number if headers else self.begun(stream) + 1
            out[stream] = StoredUnits(first - 1, tuple(headers), *self.owed.get(stream, (0, Rebuilt())))
        return out


@dataclass
class Disk:
    """A machine's disk; another identity means that what was on the first one is lost."""

    identity: str
    replicas: dict[ReplicaId, ReplicaDisk] = field(default_factory=dict)
