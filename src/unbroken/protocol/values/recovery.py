"""What a replica's directory holds: enough to go on from it after a restart, or on another node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.protocol.values.cuts import BatchCut, Reach
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.ingress_log import Admission, Entry
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt
from unbroken.protocol.values.units import UnitHeader


@dataclass(frozen=True)
class StoredUnits:
    """The units of an outbox on disk: those after ``base``, without holes.

    The consumer's state can be rebuilt from what follows ``owed``; ``rebuilt`` says what it is worth then.
    """

    base: int
    headers: tuple[UnitHeader, ...] = ()
    owed: int = 0
    rebuilt: Rebuilt = FROM_THE_FIRST


@dataclass(frozen=True)
class LogState:
    """The ingress log on disk: everything up to ``committed`` is done with, ``entries`` follow it.

    A copy that a newcomer was given comes with the ``admission`` that its leader noted. Where units are not numbered by
    the pulses of the log, ``units`` says by source up to which one everything is done with.
    """

    committed: int = 0
    entries: tuple[Entry, ...] = ()
    pulse: int = 0
    finished: bool = False
    admission: Admission | None = None
    units: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredReplica:
    """A replica as its directory shows it; the empty one is a replica that has yet to begin.

    ``committed`` is the version of a segment's checkpoint; ``log`` is set for the ingress only. A state that was built
    again from recent input gives results that are right after unit ``valid``. ``taken`` says how far each input is part
    of the state, unless that is unit ``committed`` of all of them.
    """

    committed: int = 0
    outboxes: Mapping[StreamId, StoredUnits] = field(default_factory=dict)
    inboxes: Mapping[StreamId, tuple[UnitHeader, ...]] = field(default_factory=dict)
    log: LogState = field(default_factory=LogState)
    valid: int = 0
    taken: BatchCut = field(default_factory=dict)

    def reach(self, stream: StreamId) -> Reach:
        return self.taken.get(stream, Reach(self.committed, self.committed))
