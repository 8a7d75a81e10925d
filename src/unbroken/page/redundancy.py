"""How redundant a flow is, and since when: what a page says in its first line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unbroken.observe.status.flow import ShortShard
from unbroken.page.chronicle import restored_ms
from unbroken.page.document import RedundancyView, ReplicaView
from unbroken.page.replicas import WELL
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Reported


@dataclass(frozen=True)
class FlowRedundancy:
    """``whole`` is None while it is not known. ``needed`` are the nodes without which a shard would have nobody,
    ``single`` the shards that are to have one replica only."""

    whole: bool | None
    since_ms: int | None
    shards: tuple[ShortShard, ...] = ()
    needed: tuple[NodeId, ...] = ()
    single: tuple[str, ...] = ()

    def of(self, shard: str) -> ShortShard | None:
        return next((short for short in self.shards if short.shard == shard), None)

    @property
    def sentence(self) -> str:
        """The whole of it, in words."""
        if self.whole is None:
            return "No node has said yet how the flow is."
        if self.whole:
            return "Every shard has all its replicas." + self._single()
        stopped = [short.shard for short in self.shards if not short.there]
        if stopped:
            return f"Nobody works on {_some(stopped)}; results wait until a replica is back."
        names = [short.shard for short in self.shards]
        verb = "has" if len(names) == 1 else "have"
        return f"{_some(names)} {verb} fewer replicas than wanted." + self._single()

    def _single(self) -> str:
        """What a further loss would mean."""
        if self.needed:
            verb, them = ("has", "it") if len(self.needed) == 1 else ("have", "them")
            return f" {_some(self.needed)} {verb} the last replica of a shard: do not stop {them}."
        if self.whole and not self.single:
            return " Any node may be lost."
        verb = "is" if len(self.single) == 1 else "are"
        return f" {_some(self.single)} {verb} to have no second one." if self.whole else ""

    def view(self) -> RedundancyView:
        return RedundancyView(
            whole=self.whole,
            since_ms=self.since_ms,
            sentence=self.sentence,
            needed=self.needed,
            shards=self.shards,
        )


@dataclass
class RedundancyWatch:
    """Remembers since when redundancy is as it is.

    The layout says since when a shard is short, once the controller has found that out; until then it is when that was
    first seen here. Since when all is well is what the history says, or when it was first seen.
    """

    _whole: bool | None = None
    _since_ms: int | None = None
    _short_ms: dict[str, int] = field(default_factory=dict)

    def look(self, snapshot: FlowSnapshot, views: Sequence[ReplicaView], history: Sequence[Reported]) -> FlowRedundancy:
        wanted = _wanted(snapshot)
        if not wanted:
            return FlowRedundancy(None, None)
        shards = self._shortages(snapshot, views, wanted)
        whole = not shards
        if whole != self._whole:
            first = self._whole is None
            self._whole = whole
            self._since_ms = restored_ms(history) if whole and first else snapshot.time_ms
        if not whole:
            self._since_ms = min([s.since_ms for s in shards if s.since_ms is not None], default=self._since_ms)
        single = tuple(shard for shard, (count, _) in wanted.items() if count == 1)
        return FlowRedundancy(whole, self._since_ms, tuple(shards), _needed(views, wanted), single)

    def _shortages(
        self, snapshot: FlowSnapshot, views: Sequence[ReplicaView], wanted: dict[str, tuple[int, int | None]]
    ) -> list[ShortShard]:
        placed: dict[str, list[ReplicaView]] = {}
        for view in views:
            placed.setdefault(view.shard, []).append(view)
        out: list[ShortShard] = []
        for shard, (count, noted_ms) in wanted.items():
            found = placed.get(shard, [])
            there = sum(1 for view in found if view.look in WELL)
            if there >= count and noted_ms is None:
                self._short_ms.pop(shard, None)
                continue
            seen_ms = self._short_ms.setdefault(shard, snapshot.time_ms)
            joining = sum(1 for view in found if view.look == "joining")
            since_ms = seen_ms if noted_ms is None else min(noted_ms, seen_ms)
            out.append(
                ShortShard(
                    shard=shard,
                    wanted=count,
                    there=there,
                    joining=joining,
                    missing=max(0, count - len(found)),
                    since_ms=since_ms,
                )
            )
        self._short_ms = {shard: since for shard, since in self._short_ms.items() if shard in wanted}
        return out


def _wanted(snapshot: FlowSnapshot) -> dict[str, tuple[int, int | None]]:
    """How many replicas each shard should have, and since when the controller has found it short."""
    newest = snapshot.newest
    if newest is None:
        return {}
    layout = snapshot.layout
    short = {} if layout is None else {str(shard): since for shard, since in layout.short_since.items()}
    return {shard: (facts.wanted, short.get(shard)) for shard, facts in newest.redundancy.items()}


def _needed(views: Sequence[ReplicaView], wanted: dict[str, tuple[int, int | None]]) -> tuple[NodeId, ...]:
    """The nodes of replicas that are the only ones of a shard at work; a shard that is to have one is no surprise."""
    well: dict[str, list[ReplicaView]] = {}
    for view in views:
        if view.look in WELL:
            well.setdefault(view.shard, []).append(view)
    alone = [found[0].node for shard, found in well.items() if len(found) == 1 and wanted.get(shard, (0, None))[0] > 1]
    return tuple(sorted(set(alone)))


def _some(names: Sequence[str], most: int = 4) -> str:
    """The names, or the first of them and how many there are."""
    if len(names) <= most:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:most])} and {len(names) - most} more"
