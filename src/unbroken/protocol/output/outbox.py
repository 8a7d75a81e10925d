"""The outbox of one stream: what has been produced and is still owed to somebody."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from unbroken.errors import broken, require
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.rebuilt_state import FROM_THE_FIRST, Rebuilt, merged
from unbroken.protocol.values.units import UnitHeader

SEND_WINDOW = 64
"""Units sent to a subscriber beyond its last acknowledgement. Bounds what waits in a link to a stalled peer;
far above the two or three units that are in flight when all is well."""

FAILURE_WINDOW = 20_000
"""The same for consumers that go on without input that is missing: they take in everything else meanwhile, and
acknowledge nothing. At two units per second it lasts for nearly three hours."""

ABSENT_CLIENTS = 64
"""Clients without a connection that are remembered for each stream: those that have read least."""


SNAPSHOT = -1
"""Index of the consumer that stands for a shard's snapshot: it holds units, and is never given up for being behind."""


class Heard(NamedTuple):
    """What a consumer has acknowledged last at one level, and what it is worth if it is rebuilt from what follows."""

    through: int = 0
    rebuilt: Rebuilt = FROM_THE_FIRST


UNHEARD = Heard()


@dataclass
class Subscriber:
    """Where one consumer replica (or client) started, and how far it has been sent and has acknowledged."""

    start: int
    sent: int
    acked: int
    counted: bool


@dataclass
class Outbox:
    """Units ``base + 1 .. last`` of a stream, kept until every counted consumer has acknowledged them.

    Invariants
    ----------
    - Numbers are dense: unit ``n`` is added only after unit ``n - 1``; adding one again is a no-op.
    - Loss-free: a unit is dropped only when every consumer replica that the layout counts has acknowledged
      it, and when ``retain`` younger units exist.
    - A subscriber is sent each unit after its starting point once, in order, at most ``window`` ahead of what it
      acknowledged. What is dropped meanwhile is left out; that can only happen to one that the layout does not count.
    - A muted outbox sends nothing.
    - A ``damaged`` unit is sent to no subscriber, and neither is one after it, before there is a good copy. Subscribers
      that may not have received it are then sent it, and those after it, once more.

    An acknowledgement may run ahead of ``last``: a consumer fed by a faster sibling has no need of the unit
    that this replica has yet to produce.

    Acknowledgements have levels. At level 0 a consumer has the units in its committed state, at level 1 their effects
    are safe with its own consumers as well, and so on. ``levels`` is the one at which this consumer lets units go: 0
    if it keeps its state safe itself, more if it relies on its producers (upstream backup). The consumer, which was
    ``owed`` what follows, can then be rebuilt from what follows ``base``, and ``rebuilt`` says what it is worth. Both
    are noted on disk, and units go only up to what is owed by the last note there (``noted``): a later process, or
    another replica, could otherwise not tell what the rest is good for.

    A quiet outbox has everything ready for the case that it is needed, and sends nothing.
    """

    stream: StreamId
    counted: frozenset[ReplicaId]
    retain: int = 0
    base: int = 0
    headers: dict[int, UnitHeader] = field(default_factory=dict)
    acked: dict[ReplicaId, int] = field(default_factory=dict)
    found: dict[ReplicaId, int] = field(default_factory=dict)
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    window: int = SEND_WINDOW
    muted: bool = False
    quiet: bool = False
    damaged: set[int] = field(default_factory=set)
    levels: int = 0
    heard: dict[ReplicaId, dict[int, Heard]] = field(default_factory=dict)
    owed: int = 0
    rebuilt: Rebuilt = FROM_THE_FIRST
    noted: int = 0
    absent: dict[str, int] = field(default_factory=dict)
    names: dict[str, ReplicaId] = field(init=False)
    last: int = field(init=False)
    bytes: int = field(init=False)

    def __post_init__(self) -> None:
        # Both follow from the units. They are kept because they are asked for several times with every unit.
        self.last = self.base + len(self.headers)
        self.bytes = sum(header.size for header in self.headers.values())
        self.count(self.counted)

    def add(self, header: UnitHeader) -> bool:
        """Take a produced unit; False if it was known already (a micro-batch that ran again)."""
        last = self.last
        if header.stream != self.stream:
            broken(
                f"unit of {header.stream} put into the outbox of {self.stream}",
                header.stream,
                self.stream,
                unit=header.number,
            )
        if header.number <= last:
            return False
        if header.number != last + 1:
            broken(f"{self.stream}: unit {header.number} after {last}", self.stream, unit=header.number)
        self.headers[header.number] = header
        self.last = header.number
        self.bytes += header.size
        return True

    def lose(self, number: int) -> bool:
        """A unit is not on disk as it was written: whether it was needed, and not known to be damaged."""
        if number not in self.headers or number in self.damaged:
            return False
        self.damaged.add(number)
        for entry in self.subscribers.values():
            if max(entry.acked, entry.start) < number <= entry.sent:
                entry.sent = number - 1
        return True

    def repair(self, header: UnitHeader) -> bool:
        """A copy of a unit has come; whether it takes the place of a damaged one."""
        number = header.number
        if number not in self.damaged or not self.headers[number].digest.matches(header.digest):
            return False
        self.damaged.remove(number)
        return True

    def offers(self, number: int) -> bool:
        """Whether there is a unit here that is as it was written, as far as that is known."""
        return number in self.headers and number not in self.damaged and not self.muted

    def skip(self, number: int) -> None:
        """Unit ``number`` is for nobody, as are all before it."""
        if number <= self.last:
            return
        require(
            number == self.last + 1 and not self.headers,
            f"{self.stream}: unit {number} skipped after {self.last}",
            self.stream,
            unit=number,
        )
        self.base = self.last = number
        self.acked = {replica: max(acked, number) for replica, acked in self.acked.items()}

    def subscribe(self, subscriber: str, after: int) -> bool:
        """Start sending from unit ``after + 1`` on; False if that unit has been dropped already.

        What a consumer replica has received and not committed waits in its bounded inbox, so its window starts at what
        it has said to have committed, however much longer that is kept for it. Anybody else has taken what it has
        received.
        """
        counted = subscriber in self.names
        start = max(after, self.base)
        acked = self._committed(self.names[subscriber]) if counted else start
        self.subscribers[subscriber] = Subscriber(start, start, acked, counted)
        self.absent.pop(subscriber, None)
        return after >= self.base

    def unsubscribe(self, subscriber: str) -> None:
        """Forget the link, not the claim: what a counted replica has not acknowledged is still kept for it."""
        entry = self.subscribers.pop(subscriber, None)
        if entry is not None and not entry.counted:
            self.absent[subscriber] = entry.acked
            hopeful = {name: acked for name, acked in self.absent.items() if acked > self.last - self.retain}
            self.absent = dict(sorted(hopeful.items(), key=lambda item: item[1])[:ABSENT_CLIENTS])

    def ack(self, subscriber: str, through: int, level: int = 0, rebuilt: Rebuilt = FROM_THE_FIRST) -> None:
        """Everything up to ``through`` is safe with ``subscriber``; acknowledgements never go back."""
        entry = self.subscribers.get(subscriber)
        if entry is not None and level == 0:
            entry.acked = max(entry.acked, through)
            entry.sent = max(entry.sent, entry.acked)
        replica = self.names.get(subscriber)
        if replica is None:
            return
        heard = self.heard.setdefault(replica, {})
        before = heard.get(level, UNHEARD)
        heard[level] = Heard(max(before.through, through), before.rebuilt.merged(rebuilt))
        if level == self.levels:
            self._release(replica, heard[level])

    def relevel(self, levels: int) -> bool:
        """The consumer lets units go at another level from here on; whether more is known to be safe by that.

        What has been let go at a lower one is not kept, so it takes a while until more of its consumers may be lost.
        """
        if levels == self.levels:
            return False
        known, self.levels = (self.owed, self.rebuilt), levels
        for replica, heard in self.heard.items():
            if levels in heard:
                self._release(replica, heard[levels])
        return levels > 0 and (self.owed, self.rebuilt) != known

    def _release(self, replica: ReplicaId, heard: Heard) -> None:
        self.acked[replica] = max(self.acked[replica], heard.through)
        self.owed, self.rebuilt = max(self.owed, heard.through), self.rebuilt.merged(heard.rebuilt)

    @property
    def rebuilds(self) -> bool:
        """Whether what is kept is all that the consumer's state could be rebuilt from.

        An outbox that was itself begun anew may have too little, until its consumer has come further.
        """
        return self.base <= self.owed

    def bound(self, level: int) -> int:
        """The unit up to which every counted consumer has acknowledged at ``level``.

        One that keeps its state safe itself has said all with level 0.
        """
        if not self.counted:
            return self._read_by_clients()
        return min(heard.through for heard in self._heard(level))

    def rebuilt_at(self, level: int) -> Rebuilt:
        """What the consumer is worth if it is rebuilt from the units after ``bound(level)``."""
        return merged(heard.rebuilt for heard in self._heard(level))

    def _heard(self, level: int) -> list[Heard]:
        top = min(level, self.levels)
        return [self.heard.get(replica, {}).get(top, UNHEARD) for replica in self.counted]

    def count(self, replicas: frozenset[ReplicaId]) -> None:
        """The layout counts these consumer replicas from here on; claims of the others are dropped.

        The claim of one that was not counted before reaches as far back as units are kept; what it ``found`` there is
        not held against it, because a newcomer takes most of it over with its state.
        """
        self.counted = replicas
        self.names = {str(replica): replica for replica in replicas}
        newest = max([self.last, *self.acked.values()])
        self.found = {replica: self.found.get(replica, newest) for replica in replicas}
        self.acked = {replica: self.acked.get(replica, self.base) for replica in replicas}
        self.heard = {replica: levels for replica, levels in self.heard.items() if replica in replicas}

    def overdue(self, units: int, size: int) -> list[ReplicaId]:
        """Consumers for whom more is kept than they are worth, although a sibling has long taken it.

        When all of them are slow nobody is overdue: then the sources have to wait.
        """
        if len(self.headers) <= units and self.bytes <= size:
            return []  # whoever is behind, no more than this is kept for it
        acks = {replica: acked for replica, acked in self.acked.items() if replica.index != SNAPSHOT}
        # Acknowledgements may run ahead of this producer, which then keeps nothing for those that are behind.
        front = min(self.last, max(acks.values(), default=0))
        out: list[ReplicaId] = []
        for replica, acked in acks.items():
            since = max(acked, self.found[replica])
            if since >= front:
                continue
            if front - since > units or self._kept_between(since, front) > size:
                out.append(replica)
        return sorted(out)

    def too_old(self, holder: ReplicaId, units: int, size: int) -> int | None:
        """The unit up to which ``holder`` may not hold units that everybody else has taken; None if it does not."""
        others = [acked for replica, acked in self.acked.items() if replica != holder]
        floor = front = min([self.last, *others])
        kept = 0
        while floor > self.base and front - floor < units and kept + self.headers[floor].size <= size:
            kept += self.headers[floor].size
            floor -= 1
        return floor if self.acked[holder] < floor else None

    def sends(self) -> list[tuple[str, int]]:
        """What to send next, marked as sent: (subscriber, unit number) in order."""
        out: list[tuple[str, int]] = []
        if self.muted or self.quiet:
            return out
        for name, entry in self.subscribers.items():
            if entry.sent < self.base:
                if entry.acked < entry.sent:
                    continue  # it has not taken in yet what was sent before the hole
                entry.sent = entry.acked = self.base
            limit = min(self.last, entry.acked + self.window)
            if self.damaged:
                limit = min([limit, *(number - 1 for number in self.damaged if number > entry.sent)])
            while entry.sent < limit:
                entry.sent += 1
                out.append((name, entry.sent))
        return out

    def trim(self) -> list[int]:
        """Drop what nobody is owed any more; the numbers dropped."""
        owed_from = min(self.acked.values(), default=self.last)
        limit = min(owed_from, self.last - self.retain)
        if self.levels:
            limit = min(limit, self.noted)
        if limit <= self.base:
            return []
        dropped = list(range(self.base + 1, limit + 1))
        for number in dropped:
            self.bytes -= self.headers.pop(number).size
            self.damaged.discard(number)
        self.base += len(dropped)
        return dropped

    def check(self) -> None:
        numbers = list(self.headers)
        dense = numbers == list(range(self.base + 1, self.last + 1))
        require(dense, f"{self.stream}: outbox has a hole", self.stream)
        require(self.damaged <= self.headers.keys(), f"{self.stream}: a unit that is not kept is damaged", self.stream)
        require(
            self.bytes == sum(header.size for header in self.headers.values()),
            f"{self.stream}: bytes are wrong",
            self.stream,
        )
        require(set(self.acked) == self.counted, f"{self.stream}: claims are not those of the layout", self.stream)
        robbed = [str(replica) for replica, acked in self.acked.items() if acked < self.base]
        require(
            not robbed,
            f"{self.stream}: unit {self.base} dropped before {robbed} acknowledged it",
            self.stream,
            unit=self.base,
        )
        ahead = [n for n, e in self.subscribers.items() if e.sent > max(self.last, e.acked, e.start)]
        require(not ahead, f"{self.stream}: {ahead} sent more than there is", self.stream)

    def _read_by_clients(self) -> int:
        """What every client has read, also one that has lost its connection and may be back.

        Without any, everything that one could still ask for counts as not read.
        """
        kept_after = max(0, self.last - self.retain)
        read = [entry.acked for entry in self.subscribers.values()] + list(self.absent.values())
        return max(kept_after, min(self.last, *read)) if read else kept_after

    def _committed(self, replica: ReplicaId) -> int:
        return max(self.acked[replica], self.heard.get(replica, {}).get(0, UNHEARD).through)

    def _kept_between(self, after: int, through: int) -> int:
        return sum(self.headers[n].size for n in range(max(after, self.base) + 1, min(through, self.last) + 1))
