"""The ring among the replicas of a shard: each asks the next one, time and again, whether it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from unbroken.errors import require
from unbroken.protocol.instructions import Instruction, Send, Suspect, Trust
from unbroken.protocol.messages import Ping
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS, Layout


def ring_of(layout: Layout, shard: ShardId) -> list[ReplicaId]:
    """The replicas among which those of a shard find their next.

    A replica that is alone has no sibling to be missed by, so the shards of one part that have a single replica each
    form a ring together. If there are none, all that are alone do, with the ingress among them.
    """
    replicas = sorted(layout.counted(shard))
    if len(replicas) != 1:
        return replicas
    colleagues = [replica for replica in layout.alone if replica.shard.part == shard.part]
    return colleagues if len(colleagues) > 1 else sorted({*layout.alone, *layout.counted(INGRESS)})


def followers(layout: Layout, me: NodeId) -> dict[NodeId, tuple[ReplicaId, ReplicaId]]:
    """The nodes that follow ``me`` in some ring, each with a replica here and the one there that comes next.

    Never ``me`` itself: a survivor of two, or a node with all shards of a part, has nobody to ask.
    """
    out: dict[NodeId, tuple[ReplicaId, ReplicaId]] = {}
    shards = {replica.shard for replica in layout.hosted(me)}
    parts = Counter(replica.shard.part for replica in layout.alone)
    # One that has no colleague is watched by all that are alone, whatever ring they are in themselves.
    shards.update([replica.shard for replica in layout.alone if parts[replica.shard.part] == 1][:1])
    for ring in sorted({tuple(ring_of(layout, shard)) for shard in shards}):
        for place, mine in enumerate(ring):
            if layout.placement[mine] == me:
                after = [*ring[place + 1 :], *ring[:place]]
                theirs = next((replica for replica in after if layout.placement[replica] != me), None)
                if theirs is not None:
                    out.setdefault(layout.placement[theirs], (mine, theirs))
    return out


@dataclass
class RingWatch:
    """What is known of one node that follows in a ring.

    Every period has a number, and a ping of that number is sent if there is a link. The periods up to ``answered``
    are settled, those up to ``asked`` have begun; the first that is not settled began at ``since_ms``.
    """

    mine: ReplicaId
    theirs: ReplicaId
    due_ms: float = 0.0
    asked: int = 0
    answered: int = 0
    since_ms: float = 0.0
    suspected: bool = False

    @property
    def missed(self) -> int:
        return self.asked - self.answered

    def settle(self) -> None:
        """What was asked before is not waited for: an answer that still comes was on its way already."""
        self.answered = self.asked


@dataclass
class Ring:
    """Who is to be asked, who has not answered, and who is suspected for it.

    A suspicion decides nothing here: it is told once, and taken back once, as soon as the node answers what it was
    asked lately, or is not asked any more. A node is asked once per period, however many rings it follows in.
    ``period_ms`` 0 turns all of it off.

    Only its own link and the answers count. A node is suspected at once when the link to it breaks, and when
    ``misses`` periods in a row have passed without an answer, so after ``misses + 1`` periods at the latest: the one
    in which it was well, and those. Periods without a link count like unanswered ones, because a node that was gone
    before it came next is as much to be missed. One that has answered late is believed only when it is less than
    ``misses`` answers behind; otherwise somebody slow would be suspected and trusted in turn for ever.

    Invariants: ``me`` is not asked; whoever is not suspected has left at most ``misses`` periods unanswered, the one
    that has just begun included; no period is answered before it has begun.
    """

    me: NodeId
    period_ms: float
    misses: int
    watched: dict[NodeId, RingWatch] = field(default_factory=dict)

    @property
    def suspected(self) -> frozenset[NodeId]:
        return frozenset(node for node, watch in self.watched.items() if watch.suspected)

    def placed(self, layout: Layout) -> list[Instruction]:
        """Ask those who follow by this layout, and no others."""
        following = followers(layout, self.me) if self.period_ms > 0 else {}
        out: list[Instruction] = [Trust(node, heard=False) for node in sorted(self.suspected - set(following))]
        before, self.watched = self.watched, {}
        for node, (mine, theirs) in following.items():
            watch = self.watched[node] = before.get(node) or RingWatch(mine, theirs)
            watch.mine, watch.theirs = mine, theirs
        return out

    def link_up(self, node: NodeId) -> None:
        """Ask at once over a link that is new; nothing is expected of the one before."""
        watch = self.watched.get(node)
        if watch is not None:
            watch.settle()
            watch.due_ms = 0.0

    def link_lost(self, node: NodeId) -> list[Instruction]:
        watch = self.watched.get(node)
        if watch is None:
            return []
        watch.settle()
        return self._suspect(node, watch, f"the connection to {node} broke")

    def answered(self, node: NodeId, number: int) -> list[Instruction]:
        watch = self.watched.get(node)
        if watch is None or not watch.answered < number <= watch.asked:
            return []
        watch.since_ms += (number - watch.answered) * self.period_ms
        watch.answered = number
        if not watch.suspected or watch.missed >= self.misses:
            return []
        watch.suspected = False
        return [Trust(node)]

    def tick(self, now_ms: float, links: Collection[NodeId]) -> list[Instruction]:
        """Begin the periods that are due, and say who has not answered in those before."""
        out: list[Instruction] = []
        for node, watch in self.watched.items():
            if now_ms < watch.due_ms:
                continue
            if watch.missed >= self.misses:
                out += self._suspect(node, watch, self._silence(node, watch, now_ms, linked=node in links))
            if not watch.missed:
                watch.since_ms = now_ms
            watch.asked += 1
            watch.due_ms = now_ms + self.period_ms
            if node in links:
                out.append(Send(node, Ping(watch.asked)))
        return out

    def wake_times_ms(self) -> list[float]:
        return [watch.due_ms for watch in self.watched.values()]

    def check(self) -> None:
        require(self.me not in self.watched, f"{self.me} asks itself whether it is there")
        require(self.period_ms > 0 or not self.watched, "the ring is turned off and somebody is watched")
        for node, watch in self.watched.items():
            require(0 <= watch.answered <= watch.asked, f"{node} answered what it was not asked")
            enough = watch.suspected or watch.missed <= self.misses
            require(enough, f"{node} has not answered {watch.missed} times and is not suspected")

    def _suspect(self, node: NodeId, watch: RingWatch, reason: str) -> list[Instruction]:
        if watch.suspected:
            return []
        watch.suspected = True
        return [Suspect(node, reason)]

    def _silence(self, node: NodeId, watch: RingWatch, now_ms: float, *, linked: bool) -> str:
        took = f"{(now_ms - watch.since_ms) / 1000:.1f} s"
        mine, theirs = f"{watch.mine} on {self.me}", f"{watch.theirs} on {node}"
        if not linked:
            return f"{mine} has had no connection to {theirs} for {took}"
        pings = "1 ping" if watch.missed == 1 else f"{watch.missed} pings"
        return f"{mine} has had no answer from {theirs} for {pings} ({took})"
