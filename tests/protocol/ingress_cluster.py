"""Members of one ingress log with their disks, the links between them, newcomers, and a store with compare-and-set."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from unbroken.protocol.ingress.log import (
    Admission,
    Commit,
    CopyAgain,
    Entry,
    IngressInstruction,
    IngressLog,
    IngressMessage,
    InSync,
    Notice,
    Persist,
    ProposeInSync,
    Tell,
)
from unbroken.protocol.values.ids import NodeId

Action = tuple[Any, ...]
Pair = tuple[NodeId, NodeId]


@dataclass
class Disk:
    """A log directory: entries after the base.

    ``whole``: it holds a log. ``torn``: it has lost entries that it had reported to be on disk. ``writing`` are entries
    that it has not reported yet; a kill may lose the last of them.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    base: int = 0
    whole: bool = True
    torn: bool = False
    writing: list[Entry] = field(default_factory=list)

    def persist(self, entry: Entry) -> None:
        """An entry written again replaces the earlier one and all that followed it."""
        self.entries = {index: kept for index, kept in self.entries.items() if index < entry.index} | {
            entry.index: entry
        }

    def force(self, count: int) -> int:
        """Put so many of the entries that are being written on disk."""
        done, self.writing = self.writing[:count], self.writing[count:]
        for entry in done:
            self.persist(entry)
        return len(done)

    def end(self, count: int) -> None:
        """The process ends: so many of the entries that are being written get to the disk, the rest is lost."""
        self.force(count)
        self.writing = []

    def tear(self, count: int) -> None:
        """Lose so many of the last entries, although they were on disk."""
        for index in sorted(self.entries)[len(self.entries) - count :]:
            del self.entries[index]
            self.torn = True

    def holds(self, entry: Entry) -> bool:
        return entry.index <= self.base or self.entries.get(entry.index) == entry

    def trim(self, base: int) -> None:
        self.base = max(self.base, base)
        self.entries = {index: kept for index, kept in self.entries.items() if index > self.base}

    def copy(self) -> Disk:
        return Disk(dict(self.entries), self.base)


class IngressCluster:
    """Nodes that are up have a process; of those, members and learners have a log, newcomers have none yet.

    A node that is killed may come back with its disk or without; what it had sent, to peers or to the store, may
    still arrive.
    """

    def __init__(self, members: int, spares: int = 0) -> None:
        names = [f"m{i}" for i in range(members)]
        self.names = [*names, *(f"s{i}" for i in range(spares))]
        self.history = [InSync(1, names[0], frozenset(names), 0)]
        self.up = set(self.names)
        self.logs = {name: IngressLog(name, self.doc) for name in names}
        self.disks = {name: Disk(whole=name in names) for name in self.names}
        self.copies: dict[NodeId, tuple[Admission, Disk]] = {}
        self.committed: dict[int, Entry] = {}
        self.applied = dict.fromkeys(self.names, 0)
        self.links: dict[Pair, deque[IngressMessage]] = {(a, b): deque() for a, b in self._pairs()}
        self.unnoticed: list[Pair] = []
        self.proposals: list[tuple[NodeId, ProposeInSync]] = []
        self.news: dict[NodeId, deque[InSync]] = {name: deque() for name in self.names}
        self.serial = 0
        self.seen: Counter[str] = Counter()

    @property
    def doc(self) -> InSync:
        """What the store says."""
        return self.history[-1]

    # --- what happens by itself ---------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        return [
            *(("message", pair) for pair, queue in self.links.items() if queue and pair[1] in self.up),
            *(("notice", pair) for pair in self.unnoticed if pair[0] in self.logs and not self._awaited(*pair)),
            *(("connect", pair) for pair in self._pairs() if pair not in self.links and self.up >= set(pair)),
            *(("force", name) for name in self.logs if self.disks[name].writing),
            *(("decide", place) for place in range(len(self.proposals))),
            *(("news", name) for name in self.logs if self.news[name]),
            *(("leave", name) for name, log in self.logs.items() if log.expelled),
            *(("copied", name) for name in self.copies if name in self.up),
            *(("ask", name) for name in self._newcomers()),
        ]

    def perform(self, action: Action) -> None:
        match action:
            case ("message", (sender, to)):
                message = self.links[sender, to].popleft()
                if to in self.logs:
                    self._carry_out(to, self.logs[to].receive(sender, message))
            case ("notice", (name, peer)):
                self.unnoticed.remove((name, peer))
                self._carry_out(name, self.logs[name].lost(peer))
            case ("connect", (name, peer)):
                self.links[name, peer] = deque()
                self._connected(name, peer)
            case ("force", name):
                self.force(name, 1 + self.serial % 3)
            case ("decide", place):
                self._decide(*self.proposals.pop(place))
            case ("news", name):
                self._carry_out(name, self.logs[name].in_sync(self.news[name].popleft()))
            case ("leave", name):
                self._drop(name)
            case ("copied", name):
                self._copied(name)
            case ("ask", name):
                self._ask(name)

    def append(self, name: NodeId) -> None:
        if name in self.logs and self.logs[name].leading:
            self.serial += 1
            self._carry_out(name, self.logs[name].append(f"{name} {self.serial}".encode()))

    # --- faults -------------------------------------------------------------------------------------------

    def cut(self, pair: Pair) -> None:
        if self._torn() & set(pair) and self.up >= set(pair):
            return
        if self.links.pop(pair, None) is not None:
            self.unnoticed.append(pair)

    def force(self, name: NodeId, count: int) -> None:
        if name in self.logs:
            self._carry_out(name, self.logs[name].persisted(self.disks[name].force(count)))

    def tear(self, name: NodeId, count: int) -> None:
        """The power of a node fails, and its disk loses the end of the log, unless that may be nowhere else."""
        if self.disks[name].whole and not self._torn() and self._spared(name) and self._sound() - {name}:
            self.kill(name)
            self._tear(name, count)

    def blackout(self, name: NodeId, count: int) -> None:
        """The power of all nodes fails, one disk loses the end of its log, and all members come back at once."""
        if self.disks[name].whole and not self._torn() and self._spared(name):
            for each in self.names:
                self.kill(each)
            self._tear(name, count)
            for each in sorted(self.doc.members):
                self.restart(each)

    def _tear(self, name: NodeId, count: int) -> None:
        self.disks[name].tear(count)
        self.seen["torn"] += self.disks[name].torn

    def _sound(self) -> set[NodeId]:
        """The members that are up and have lost nothing."""
        return {name for name in self.doc.members & self.up if self.disks[name].whole and not self.disks[name].torn}

    def _torn(self) -> set[NodeId]:
        """The members that have lost entries; with any, another one is needed that has not, or they are lost."""
        return {name for name in self.doc.members if self.disks[name].torn}

    def _needed(self, name: NodeId) -> bool:
        """Whether this is the last node that has what a member has lost."""
        return bool(self._torn()) and self._sound() <= {name}

    def _awaited(self, name: NodeId, peer: NodeId) -> bool:
        """Whether a member with a loss waits for a link to one without: that takes less time than to give it up."""
        return name in self._torn() and peer in self.up

    def kill(self, name: NodeId) -> None:
        """kill -9: the disk stays, and what the process has sent is still on its way."""
        if self._needed(name):
            return
        self.up.discard(name)
        self.disks[name].end(self.serial % 3)
        self.logs.pop(name, None)
        self.copies.pop(name, None)
        self.unnoticed = [pair for pair in self.unnoticed if pair[0] != name]
        for pair in list(self.links):
            if pair[1] == name:
                self.cut(pair)

    def wipe(self, name: NodeId) -> None:
        """Kill a node and lose its disk, unless the log may be nowhere else."""
        if self._spared(name) and not self._needed(name):
            self.kill(name)
            self.disks[name] = Disk(whole=False)

    def _spared(self, name: NodeId) -> bool:
        """Whether a log without a loss is elsewhere, whichever set the store decides for."""
        sets = [self.doc, *(step.proposal for _, step in self.proposals if step.replaces == self.doc.version)]
        whole = {other for other, disk in self.disks.items() if disk.whole and not disk.torn and other != name}
        return all(each.members & whole for each in sets)

    def restart(self, name: NodeId) -> None:
        """A member comes back with what its disk holds, anybody else as a newcomer."""
        if name in self.up:
            return
        self.up.add(name)
        self.news[name].clear()
        if name in self.doc.members and self.disks[name].whole:
            self._recover(name)

    def trim(self, name: NodeId, back: int) -> None:
        """The units of what is committed, except the last few, are with their consumers."""
        if name in self.logs:
            self.disks[name].trim(self.applied[name] - back)

    def abandon(self, name: NodeId) -> None:
        """A newcomer's node wants another copy, for a reason of its own; it keeps what it has until it gets one."""
        self.copies.pop(name, None)
        if name in self.logs and self.logs[name].learning:
            del self.logs[name]
            self.disks[name].end(self.serial % 3)

    # --- what must hold -----------------------------------------------------------------------------------

    def check(self) -> None:
        for log in self.logs.values():
            log.check()
        for name in self.doc.members:
            if self.disks[name].whole and not self.disks[name].torn:
                for entry in self.committed.values():
                    assert self.disks[name].holds(entry), f"{name} lost committed entry {entry.index}"
        assert sorted(self.committed) == list(range(1, len(self.committed) + 1)), "committed entries have a hole"

    def settle(self) -> None:
        """No more faults: everybody who is up becomes a member, one leads, and what it appends is committed by all."""
        self._run()
        while not (self.doc.members & self.logs.keys() and self.doc.leader in self.logs):
            self.restart(min(name for name in self.doc.members - self.up if self.disks[name].whole))
            self._run()
        assert self.doc.members == self.up == self.logs.keys(), f"{self.up} are up, the store says {self.doc}"
        leaders = [name for name, log in self.logs.items() if log.leading]
        assert leaders == [self.doc.leader], f"{leaders} lead, the store says {self.doc}"
        self._check_committed(self.logs[leaders[0]].committed)
        self.append(leaders[0])
        last = self.logs[leaders[0]].last
        self._run()
        self._check_committed(last)
        assert max(self.committed) == last
        assert not any(log.entries for log in self.logs.values()), "a tail of an older leader is left"

    def _check_committed(self, last: int) -> None:
        for name in self.doc.members:
            assert self.logs[name].committed == last, f"{name} committed only {self.logs[name].committed} of {last}"

    def _run(self) -> None:
        for _ in range(3_000):
            actions = self.actions()
            if not actions:
                return
            self.perform(actions[0])
            self.check()
        raise AssertionError(f"the ingress does not come to rest: {self.actions()}")

    # --- parts --------------------------------------------------------------------------------------------

    def _pairs(self) -> list[Pair]:
        return [(a, b) for a in self.names for b in self.names if a != b]

    def _newcomers(self) -> list[NodeId]:
        """The nodes that ask for a copy, first those of members: the leader may wait for them."""
        found = [name for name in self.names if self._is_newcomer(name)]
        return sorted(found, key=lambda name: name not in self.doc.members)

    def _is_newcomer(self, name: NodeId) -> bool:
        """Whether a node is to ask for a copy, and there is somebody to ask, or has a log that counts."""
        if name not in self.up or name in self.logs or name in self.copies:
            return False
        if name in self.doc.members:
            return self.disks[name].whole or bool(self.doc.members & self.logs.keys())
        return self.doc.leader in self.logs

    def _ask(self, name: NodeId) -> None:
        """A newcomer looks at the document, and asks the leader for a copy."""
        if name in self.doc.members:
            if self.disks[name].whole:
                self._recover(name)
                return
            # Everybody sees from the layout that this node has lost its replica.
            for peer in sorted(self.logs):
                self._carry_out(peer, self.logs[peer].lost(name))
            return
        leader = self.logs[self.doc.leader]
        admission, steps = leader.learn(name)
        self._carry_out(leader.me, steps)
        if admission is not None:
            self.copies[name] = (admission, self.disks[leader.me].copy())
            self.disks[name] = Disk()

    def _copied(self, name: NodeId) -> None:
        """The copy is complete; the newcomer may know an older document than the store has."""
        admission, disk = self.copies.pop(name)
        self.disks[name] = disk
        known = self.history[-1 - self.serial % min(2, len(self.history))]
        log = IngressLog.learner(name, known, admission, disk.base, list(disk.entries.values()), 0, False)
        self._start(name, log)
        if known != self.doc:
            self.news[name].append(self.doc)

    def _recover(self, name: NodeId) -> None:
        disk = self.disks[name]
        log = IngressLog.recovered(name, self.doc, disk.base, list(disk.entries.values()), 0, False)
        self._start(name, log)
        for pair in list(self.links):
            if pair[0] == name:
                self._connected(*pair)

    def _start(self, name: NodeId, log: IngressLog) -> None:
        self.logs[name] = log
        self.news[name].clear()
        self.applied[name] = log.committed
        without = [pair for pair in self._pairs() if pair[0] == name and pair not in self.links]
        self.unnoticed += [pair for pair in without if pair not in self.unnoticed]
        self._carry_out(name, log.begin())

    def _connected(self, name: NodeId, peer: NodeId) -> None:
        if (name, peer) in self.unnoticed:
            self.unnoticed.remove((name, peer))
        if name in self.logs:
            self._carry_out(name, self.logs[name].connected(peer))

    def _drop(self, name: NodeId) -> None:
        """Give a log up. A disk that still counts as whole must hold everything if the store names its node."""
        del self.logs[name]
        self.disks[name] = Disk()

    def _decide(self, proposer: NodeId, step: ProposeInSync) -> None:
        if step.replaces == self.doc.version:
            self.history.append(step.proposal)
            for news in self.news.values():
                news.append(self.doc)
        self.news[proposer].append(self.doc)

    def _carry_out(self, name: NodeId, steps: list[IngressInstruction]) -> None:
        for step in steps:
            match step:
                case Persist(entry):
                    self.disks[name].writing.append(entry)
                case Notice():
                    self.seen["notice"] += 1
                case Commit(entry):
                    assert self.disks[name].holds(entry), f"{name} commits {entry}, which is not on its disk"
                    known = self.committed.setdefault(entry.index, entry)
                    assert known == entry, f"{name} commits {entry}, but {known} was committed"
                    assert entry.index == self.applied[name] + 1, f"{name} commits {entry} after {self.applied[name]}"
                    self.applied[name] = entry.index
                case Tell(to, message):
                    if (name, to) in self.links:
                        self.links[name, to].append(message)
                case ProposeInSync():
                    self.proposals.append((name, step))
                case CopyAgain():
                    self._drop(name)
