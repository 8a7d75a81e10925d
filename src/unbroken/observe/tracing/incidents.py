"""The spans of what a flow has to deal with: lost nodes, a new leader of the ingress, replicas that end and are built.

Each incident is a trace of its own, and all nodes that take part in it contribute to the same one: everybody who misses
a node, the newcomer and its donor. Incidents that follow from each other are linked, and pulses to those during which
they were cut. They are rare, so all of them are traced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unbroken.observe.tracing.ids import Ids, SpanPlace
from unbroken.observe.tracing.spans import AttributeValue, Moment, Recent, Seen, Span
from unbroken.protocol.events import (
    FetchFailed,
    GateAsked,
    InSyncChanged,
    LayoutChanged,
    LinkLost,
    LinkUp,
    PinAsked,
    QueryFailed,
    StateArrived,
)
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.instructions import (
    DropReplica,
    FetchState,
    Instruction,
    PinState,
    ReportCaughtUp,
    StopReplica,
    Suspect,
    Trust,
)
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, home_of
from unbroken.protocol.values.layout import Layout

REMEMBERED = 256
"""Losses and ended replicas that a replacement can be linked to."""


@dataclass
class _Loss:
    """A node that is missed."""

    node: NodeId
    place: SpanPlace
    start_ns: int
    hosted: tuple[str, ...]
    unlinked: bool = False
    moments: list[Moment] = field(default_factory=list)


@dataclass
class _Join:
    """A replica that is being built here."""

    replica: ReplicaId
    start_ns: int
    replaces: tuple[str, ...]
    links: tuple[SpanPlace, ...]
    copy_ns: int = 0
    donor: str = ""
    copies: int = 0
    arrived_ns: int = 0
    moments: list[Moment] = field(default_factory=list)


class IncidentSpans:
    """Makes spans of what one node sees of incidents."""

    def __init__(self, me: NodeId, ids: Ids, layout: Layout, sync: InSync, now_ns: int) -> None:
        self._me = me
        self._ids = ids
        self._layout = layout
        self._sync = sync
        self._losses: Recent[NodeId, _Loss] = Recent(REMEMBERED)
        self._missed: Recent[NodeId, SpanPlace] = Recent(REMEMBERED)
        self._incarnations: Recent[NodeId, str] = Recent(REMEMBERED)
        self._gone: Recent[ShardId, dict[ReplicaId, SpanPlace]] = Recent(REMEMBERED)
        self._joins: Recent[ReplicaId, _Join] = Recent(REMEMBERED)
        self._failed: Recent[ReplicaId, tuple[int, str]] = Recent(REMEMBERED)
        self._begin_joins(layout.joining, now_ns)

    def see(self, seen: Seen) -> list[Span]:
        """The spans that have ended with this."""
        out: list[Span] = []
        match seen.event:
            case LinkUp(node):
                self._incarnations[node] = seen.incarnation or self._incarnations.get(node, "")
                out += self._heard(node, seen.began_ns)
            case LinkLost(node):
                self._incarnations[node] = seen.incarnation or self._incarnations.get(node, "")
                loss = self._miss(node, seen.began_ns)
                loss.unlinked = True
                loss.moments.append(Moment("the link is lost", seen.began_ns))
                out += self._given_up(seen.ended_ns)
            case InSyncChanged(sync):
                out += self._in_sync(sync, seen)
            case LayoutChanged(layout):
                out += self._layout_changed(layout, seen)
            case PinAsked():
                out += self._pinned(seen, seen.event)
            case StateArrived() | FetchFailed():
                out += self._copied(seen, seen.event)
            case QueryFailed(replica, reason):
                self._failed[replica] = (seen.began_ns, reason)
            case GateAsked() if seen.event.replica in self._failed:
                out += self._restarted(seen.event.replica, seen.began_ns)
        for step in seen.steps:
            out += self._carried_out(step, seen)
        return out

    def under_way(self) -> tuple[SpanPlace, ...]:
        """What the flow deals with at this moment, as far as this node knows."""
        joins = [self._ids.join(replica) for replica in self._joins]
        return (*(loss.place for loss in self._losses.values()), *joins)

    def close(self, now_ns: int) -> list[Span]:
        """The node ends: what has not come to an end is told as it stands."""
        out = [self._loss_span(loss, now_ns, "still missed") for loss in self._losses.values()]
        out += [self._join_span(join, now_ns, "the node ended") for join in self._joins.values()]
        self._losses.clear()
        self._joins.clear()
        return out

    # --- lost nodes ------------------------------------------------------------------------------------

    def _miss(self, node: NodeId, now_ns: int) -> _Loss:
        loss = self._losses.get(node)
        if loss is None:
            place = self._ids.loss(node, self._incarnations.get(node, ""), self._me)
            hosted = tuple(str(replica) for replica in self._layout.hosted(node))
            loss = self._losses[node] = _Loss(node, place, now_ns, hosted)
            self._missed[node] = place
        return loss

    def _heard(self, node: NodeId, now_ns: int, outcome: str = "heard again") -> list[Span]:
        self._missed.pop(node, None)
        loss = self._losses.pop(node, None)
        return [] if loss is None else [self._loss_span(loss, now_ns, outcome)]

    def _given_up(self, now_ns: int) -> list[Span]:
        """Losses end when the layout counts on the node for nothing any more."""
        done = [loss for loss in self._losses.values() if not self._layout.hosted(loss.node)]
        for loss in done:
            del self._losses[loss.node]
        return [self._loss_span(loss, now_ns, "gone on without") for loss in done]

    def _loss_span(self, loss: _Loss, now_ns: int, outcome: str) -> Span:
        attributes: dict[str, AttributeValue] = {
            "unbroken.lost_node": loss.node,
            "unbroken.replicas": loss.hosted,
            "unbroken.outcome": outcome,
            "unbroken.layout": self._layout.version,
        }
        end_ns = max(now_ns, loss.start_ns)
        return Span("miss a node", loss.place, None, loss.start_ns, end_ns, attributes, tuple(loss.moments))

    def _in_sync(self, sync: InSync, seen: Seen) -> list[Span]:
        if sync.version <= self._sync.version:
            return []
        before, self._sync = self._sync, sync
        if sync.leader != self._me or before.leader == self._me:
            return []
        loss = self._losses.get(before.leader)
        place = self._ids.lead(sync.term) if loss is None else self._ids.within(loss.place, "lead", sync.term)
        attributes: dict[str, AttributeValue] = {
            "unbroken.term": sync.term,
            "unbroken.leader_before": before.leader,
            "unbroken.members": tuple(sorted(sync.members)),
        }
        start_ns = seen.began_ns if loss is None else loss.start_ns
        parent = None if loss is None else loss.place
        return [Span("lead the ingress", place, parent, start_ns, seen.ended_ns, attributes)]

    # --- replicas --------------------------------------------------------------------------------------

    def _layout_changed(self, layout: Layout, seen: Seen) -> list[Span]:
        if layout.version <= self._layout.version:
            return []
        before, self._layout = self._layout, layout
        for replica in sorted(set(before.placement) - set(layout.placement)):
            # Whoever misses the node tells of the loss; a node that is well tells of the end of its replica.
            place = self._missed.get(before.placement[replica]) or self._ids.end(replica)
            self._gone[replica.shard] = {**self._gone.get(replica.shard, {}), replica: place}
        out = [*self._given_up(seen.ended_ns), *self._joined(seen.ended_ns)]
        self._begin_joins(layout.joining - before.joining, seen.began_ns)
        return out

    def _begin_joins(self, began: frozenset[ReplicaId], now_ns: int) -> None:
        """Whoever begins to join a shard takes the place of those that it has lost last."""
        for replica in sorted(began):
            gone = self._gone.pop(replica.shard, {})
            if self._layout.placement[replica] == self._me:
                links = tuple(dict.fromkeys(gone.values()))
                self._joins[replica] = _Join(replica, now_ns, tuple(str(other) for other in gone), links)

    def _joined(self, now_ns: int) -> list[Span]:
        out: list[Span] = []
        for replica, join in list(self._joins.items()):
            if replica in self._layout.joining:
                continue
            del self._joins[replica]
            placed = replica in self._layout.placement
            out.append(self._join_span(join, now_ns, "" if placed else "it was given up before it had caught up"))
        return out

    def _join_span(self, join: _Join, now_ns: int, failure: str) -> Span:
        replica = join.replica
        attributes: dict[str, AttributeValue] = {
            "unbroken.replica": str(replica),
            "unbroken.shard": str(replica.shard),
            "unbroken.replaces": join.replaces,
            "unbroken.copies": join.copies,
        }
        times = (join.start_ns, max(now_ns, join.start_ns))
        moments = tuple(join.moments)
        return Span(
            f"join {replica.shard.part}",
            self._ids.join(replica),
            None,
            *times,
            attributes,
            moments,
            join.links,
            failure=failure,
        )

    def _copied(self, seen: Seen, event: StateArrived | FetchFailed) -> list[Span]:
        join = self._joins.get(event.replica)
        if join is None or not join.copy_ns:
            return []
        start_ns, join.copy_ns = join.copy_ns, 0
        whole = self._ids.join(event.replica)
        attributes: dict[str, AttributeValue] = {"unbroken.replica": str(event.replica), "unbroken.donor": join.donor}
        failure = ""
        if isinstance(event, StateArrived):
            join.arrived_ns = seen.ended_ns
            attributes["unbroken.bytes"] = event.size
            attributes["unbroken.unit"] = event.state.committed
        else:
            failure = event.reason
        place = self._ids.within(whole, "copy", join.copies)
        return [Span("copy state", place, whole, start_ns, seen.ended_ns, attributes, kind="client", failure=failure)]

    def _pinned(self, seen: Seen, event: PinAsked) -> list[Span]:
        """A donor's part in a join that goes on elsewhere."""
        joining = [replica for replica in self._layout.joining if replica.shard == event.shard]
        newcomer = next((replica for replica in joining if self._layout.placement[replica] == event.node), None)
        pin = next((step for step in seen.steps if isinstance(step, PinState)), None)
        if newcomer is None or pin is None:
            return []
        whole = self._ids.join(newcomer)
        attributes: dict[str, AttributeValue] = {
            "unbroken.replica": str(pin.replica),
            "unbroken.newcomer": str(newcomer),
            "unbroken.unit": pin.version,
        }
        place = self._ids.within(whole, "pin", self._me, event.ticket)
        return [Span("pin state", place, whole, seen.began_ns, seen.ended_ns, attributes)]

    def _restarted(self, replica: ReplicaId, now_ns: int, failure: str = "") -> list[Span]:
        start_ns, reason = self._failed.pop(replica)
        attributes: dict[str, AttributeValue] = {"unbroken.replica": str(replica), "unbroken.reason": reason}
        place = self._ids.within(self._ids.end(replica), "restart", start_ns)
        times = (start_ns, max(now_ns, start_ns))
        return [Span("restart a query", place, None, *times, attributes, failure=failure)]

    def _carried_out(self, step: Instruction, seen: Seen) -> list[Span]:
        match step:
            case Suspect(node, reason):
                moment = Moment("suspected", seen.began_ns, {"unbroken.reason": reason})
                self._miss(node, seen.began_ns).moments.append(moment)
            case Trust(node, heard):
                loss = self._losses.get(node)
                if heard or (loss is not None and not loss.unlinked):
                    return self._heard(node, seen.began_ns, "heard again" if heard else "not asked any more")
            case FetchState(replica, donor) if replica in self._joins:
                join = self._joins[replica]
                join.copy_ns, join.donor, join.copies = seen.ended_ns, donor or "snapshot", join.copies + 1
            case ReportCaughtUp(replica) if replica in self._joins:
                return self._caught_up(self._joins[replica], seen)
            case StopReplica(replica, reason):
                return self._stopped(replica, reason, seen)
            case DropReplica(replica) if home_of(replica.shard.part) == replica.shard.part:
                attributes: dict[str, AttributeValue] = {
                    "unbroken.replica": str(replica),
                    "unbroken.layout": self._layout.version,
                }
                return [Span("drop a replica", self._ids.end(replica), None, seen.began_ns, seen.ended_ns, attributes)]
        return []

    def _caught_up(self, join: _Join, seen: Seen) -> list[Span]:
        join.moments.append(Moment("caught up", seen.began_ns))
        if not join.arrived_ns:
            return []
        whole = self._ids.join(join.replica)
        attributes: dict[str, AttributeValue] = {"unbroken.replica": str(join.replica)}
        times = (join.arrived_ns, max(seen.began_ns, join.arrived_ns))
        return [Span("catch up", self._ids.within(whole, "catch up"), whole, *times, attributes)]

    def _stopped(self, replica: ReplicaId, reason: str, seen: Seen) -> list[Span]:
        out = self._restarted(replica, seen.began_ns, reason) if replica in self._failed else []
        place = self._ids.within(self._ids.end(replica), "stop", seen.began_ns)
        attributes: dict[str, AttributeValue] = {"unbroken.replica": str(replica)}
        return [*out, Span("stop a replica", place, None, seen.began_ns, seen.ended_ns, attributes, failure=reason)]
