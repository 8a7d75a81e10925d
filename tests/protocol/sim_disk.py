"""Simulated disks: what a replica's directory holds, and what is recovered from it after a restart or a copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unbroken.protocol.ingress.log import Admission, Entry
from unbroken.protocol.instructions import PinState
from unbroken.protocol.repair.rebuilt_state import Rebuilt
from unbroken.protocol.replica.cuts import Cut
from unbroken.protocol.replica.recovery import LogState, ReplicaState, StoredUnits
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import UnitHeader

Units = dict[tuple[StreamId, int], tuple[UnitHeader, int]]
"""Files of units: (stream, number) to header and content."""


@dataclass
class ReplicaDisk:
    """The directory of one replica: a checkpoint with its versions, inbox, outbox and the log of the ingress.

    The log begins after ``base``, which is the entry of pulse ``base_pulse``: rows pushed before it are in its units.
    What runs code that came later began at version ``began`` with copy number ``copy`` of its predecessor's state.
    """

    committed: int = 0
    states: dict[int, Any] = field(default_factory=lambda: {0: 0})
    inbox: Units = field(default_factory=dict)
    outbox: Units = field(default_factory=dict)
    log: dict[int, Entry] = field(default_factory=dict)
    base: int = 0
    base_pulse: int = 0
    finished: bool = False
    base_body: bytes | None = None
    copy: int = 0
    began: int = 0
    valid: int = 0
    owed: dict[StreamId, tuple[int, Rebuilt]] = field(default_factory=dict)
    cuts: dict[int, Cut] = field(default_factory=dict)
    admission: Admission | None = None

    def persist(self, entry: Entry) -> None:
        """An entry written again replaces the earlier one and all that followed it."""
        if self.log.get(entry.index) != entry:
            self.log = {index: kept for index, kept in self.log.items() if index < entry.index}
            self.log[entry.index] = entry

    def trim_log(self, pulse: int) -> None:
        """The units of ``pulse`` and all before it are needed by nobody."""
        for index, entry in sorted(self.log.items()):
            if entry.pulse and entry.pulse <= pulse:
                self.base, self.base_pulse, self.finished = index, entry.pulse, entry.final
                self.base_body = entry.body
        self.log = {index: entry for index, entry in self.log.items() if index > self.base}

    def pin(self, step: PinState) -> ReplicaDisk:
        """What a newcomer is given: the state at a version, and the units of the outbox that go with it."""
        wanted = {(stream, n) for stream, base, last in step.units for n in range(base + 1, last + 1)}
        outbox = {key: self.outbox[key] for key in sorted(wanted, key=lambda key: (str(key[0]), key[1]))}
        if step.replica.shard != INGRESS:
            states = {version: state for version, state in self.states.items() if version <= step.version}
            kept = ReplicaDisk(committed=step.version, states=states, outbox=outbox, copy=self.copy, began=self.began)
            return replace(kept, valid=self.valid, owed=dict(self.owed), cuts=dict(self.cuts))
        return ReplicaDisk(
            outbox=outbox,
            log=dict(self.log),
            base=self.base,
            base_pulse=self.base_pulse,
            finished=self.finished,
            base_body=self.base_body,
            owed=dict(self.owed),
            admission=step.admission,
        )

    def begin_from(self, copy: int) -> ReplicaDisk:
        """What a successor begins with: the state alone."""
        return ReplicaDisk(committed=self.committed, states=self.states, copy=copy, began=self.committed)

    def taken(self, stream: StreamId) -> int:
        """The last unit of an input that is part of the committed state."""
        cut = self.cuts.get(self.committed, {})
        return cut[stream].unit if stream in cut else self.committed

    def newest(self) -> int:
        """The newest unit that may have left a segment's replica before its process ended."""
        processed = any(number == self.committed + 1 for _, number in self.inbox)
        return max([self.committed + processed, *(number for _, number in self.outbox)])

    def last_pulse(self) -> bytes | None:
        """The body of the newest pulse in the log, or the last one before it."""
        bodies = [self.log[index].body for index in sorted(self.log) if self.log[index].pulse]
        return bodies[-1] if bodies else self.base_body

    def recover(self, replica: ReplicaId) -> ReplicaState:
        """As after a restart: what is superseded is removed, the rest is read back."""
        if replica.shard == INGRESS:
            entries = tuple(self.log[index] for index in sorted(self.log))
            log = LogState(self.base, entries, self.base_pulse, self.finished, self.admission)
            self.admission = None  # known to the process that has received the copy, and to no later one
            return ReplicaState(self.base_pulse, self._stored(self.base_pulse), log=log)
        taken = self.cuts.get(self.committed, {})
        stable = {key: unit for key, unit in self.inbox.items() if key[0].home == key[0]}
        self.inbox = {key: unit for key, unit in stable.items() if key[1] > self.taken(key[0])}
        inboxes: dict[StreamId, tuple[UnitHeader, ...]] = {}
        for (stream, _), (header, _) in sorted(self.inbox.items(), key=lambda item: (str(item[0][0]), item[0][1])):
            inboxes[stream] = (*inboxes.get(stream, ()), header)
        stored = self._stored(max(self.committed, self.valid))
        return ReplicaState(self.committed, stored, inboxes, valid=self.valid, taken=taken)

    def stored_base(self, stream: StreamId, nothing: int) -> int:
        """After which unit the outbox of a stream begins; ``nothing`` if there is none in it."""
        return min((n for s, n in self.outbox if s == stream), default=nothing + 1) - 1

    def _stored(self, base: int) -> Mapping[StreamId, StoredUnits]:
        out: dict[StreamId, StoredUnits] = {}
        for stream in dict.fromkeys([*(stream for stream, _ in self.outbox), *self.owed]):
            headers = [self.outbox[key][0] for key in sorted(k for k in self.outbox if k[0] == stream)]
            first = headers[0].number if headers else base + 1
            out[stream] = StoredUnits(first - 1, tuple(headers), *self.owed.get(stream, (0, Rebuilt())))
        return out


@dataclass
class Disk:
    """A node's disk; another identity means that what was on the first one is lost."""

    identity: str
    replicas: dict[ReplicaId, ReplicaDisk] = field(default_factory=dict)
