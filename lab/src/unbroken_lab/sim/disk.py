"""Simulated disks: what a replica's directory holds, and what is recovered from it after a restart or a copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import PinState
from unbroken.protocol.values.cuts import BatchCut
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.recovery import StoredReplica, StoredUnits
from unbroken.protocol.values.units import UnitHeader
from unbroken_lab.sim.content import Content, Files, Folded, State
from unbroken_lab.sim.files import SimulatedFiles
from unbroken_lab.sim.ingress_log import LogPlace
from unbroken_lab.sim.programs import NOTHING, Origin

VERSIONS = 100
"""Versions of a state that are kept, like Spark does."""


@dataclass(slots=True)
class ReplicaDisk:
    """The directory of one replica: a checkpoint with its versions, inbox, outbox and the log of the ingress.

    The ingress has its log in the files of its machine (``log``), and on its way to another one in ``log_copy``. Up to
    unit ``valid`` the results are not for anybody, because the state was still being built. ``damaged`` units of the
    outbox are not as they were written; so will be the next ones, as many as there are ``bad_blocks``.
    ``origin`` is where the state of a replica with later code comes from.
    """

    committed: int = 0
    states: dict[int, State] = field(default_factory=lambda: {0: Folded()})
    inbox: Files = field(default_factory=dict)
    outbox: Files = field(default_factory=dict)
    log: LogPlace | None = None
    log_copy: dict[str, bytes] = field(default_factory=dict)
    valid: int = 0
    owed: dict[StreamId, tuple[int, Rebuilt]] = field(default_factory=dict)
    cuts: dict[int, BatchCut] = field(default_factory=dict)
    admission: Admission | None = None
    state_bytes: int = 0
    damaged: set[tuple[StreamId, int]] = field(default_factory=set)
    bad_blocks: int = 0
    origin: Origin = NOTHING

    def write(self, header: UnitHeader, content: Content) -> None:
        """Put a unit into the outbox."""
        key = (header.stream, header.number)
        self.outbox[key] = (header, content)
        self.damaged.discard(key)
        if self.bad_blocks:
            self.bad_blocks -= 1
            self.damaged.add(key)

    def commit(self, number: int, state: State, cut: BatchCut) -> None:
        """A micro-batch is part of the state."""
        self.states[number] = state
        self.cuts[number] = cut
        self.committed = number
        if len(self.states) > 2 * VERSIONS:
            for old in sorted(self.states)[:-VERSIONS]:
                del self.states[old]
                self.cuts.pop(old, None)

    def pin(self, step: PinState, log: Mapping[str, bytes] | None = None) -> ReplicaDisk:
        """What a newcomer is given: the state at a version or the files of the log, and the units of the outbox that go
        with it."""
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
                origin=self.origin,
            )
        return ReplicaDisk(
            outbox=outbox,
            log_copy={} if log is None else dict(log),
            owed=dict(self.owed),
            admission=step.admission,
        )

    def begin_from(self, copy: int) -> ReplicaDisk:
        """What a successor begins with: the state alone."""
        origin = Origin(copy, self.committed)
        return ReplicaDisk(self.committed, self.states, state_bytes=self.state_bytes, origin=origin)

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

    def spoiled(self, replica: ReplicaId) -> bool:
        """Whether a damaged unit of the outbox cannot be recomputed from what is here."""
        return replica.shard != INGRESS and any(number <= self.begun(stream) for stream, number in self.damaged)

    def _remove_damaged(self) -> None:
        """Remove damaged units, with those after them, which are recomputed; or with those before them, which are not
        needed here."""
        for stream, number in sorted(self.damaged):
            later = number > self.begun(stream)
            for key in [key for key in self.outbox if key[0] == stream]:
                if key[1] == number or (key[1] > number) == later:
                    del self.outbox[key]
        self.damaged.clear()

    def recover(self, replica: ReplicaId) -> StoredReplica:
        """As after a restart: what is superseded is removed, the rest is read back."""
        self._remove_damaged()
        if replica.shard == INGRESS:
            assert self.log is not None
            log = self.log.state(self.admission)
            self.admission = None  # known to the process that has received the copy, and to no later one
            return StoredReplica(log.pulse, self._stored(), log=log)
        taken = self.cuts.get(self.committed) or {}
        kept = {key: unit for key, unit in self.inbox.items() if key[0].home == key[0] and key[1] > self.taken(key[0])}
        self.inbox = kept
        inboxes: dict[StreamId, list[UnitHeader]] = {}
        for (stream, _), (header, _) in sorted(kept.items(), key=lambda item: (str(item[0][0]), item[0][1])):
            inboxes.setdefault(stream, []).append(header)
        units = {stream: tuple(headers) for stream, headers in inboxes.items()}
        return StoredReplica(self.committed, self._stored(), units, valid=self.valid, taken=taken)

    def begun(self, stream: StreamId) -> int:
        """After which unit the outbox of a stream begins if there is none in it."""
        if self.log is None:
            return max(self.committed, self.valid)
        base = self.log.base
        return base.units.get(stream.producer.part, base.pulse)

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
    """A machine's disk; another identity means that what was on the first one is lost. ``begun`` are the replicas that
    have ever had a directory on it. One that is ``full`` takes no units."""

    identity: str
    files: SimulatedFiles
    replicas: dict[ReplicaId, ReplicaDisk] = field(default_factory=dict)
    begun: set[ReplicaId] = field(default_factory=set)
    full: bool = False

    def check_room(self) -> None:
        """Units can be written; OSError if not."""
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
