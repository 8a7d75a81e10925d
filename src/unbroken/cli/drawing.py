"""A flow as a drawing in text: its parts, how they hang together, and where the replicas are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from unbroken.observe.status.flow import FlowTopology, PlaceState, ReplicaPlace
from unbroken.observe.status.node import NodeState, NodeStatus, PauseStatus, ReplicaState
from unbroken.observe.status.shape import FlowShape
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.wording import counted

if TYPE_CHECKING:
    from unbroken.protocol.values.layout import Layout

_WELL = (PlaceState.ACTIVE, PlaceState.STANDS_BY, PlaceState.HOLDS_COPY, PlaceState.LEADS, PlaceState.FOLLOWS)
COLOURS = {**dict.fromkeys(_WELL, "green"), PlaceState.JOINS: "yellow"}
"""States of a replica that are as they should be, or will be; all others are shown as trouble."""


@dataclass(frozen=True)
class Drawing:
    """The parts of a flow in the order of its data; ``places`` by shard, if it runs."""

    shape: FlowShape
    places: Mapping[str, tuple[ReplicaPlace, ...]] = field(default_factory=dict)
    pause: PauseStatus | None = None

    @classmethod
    def running(cls, states: Sequence[NodeStatus], layout: Layout) -> Drawing:
        """A flow that runs, by what its nodes report and the layout they go by."""
        told = [state for state in states if state.flow is not None]
        newest = max(told, key=lambda state: state.layout_version or 0)
        assert newest.flow is not None
        return cls(newest.flow, places_of(states, layout), newest.pause)

    def inputs(self, part: str) -> list[str]:
        return [producer for producer, consumer in self.shape.edges if consumer == part]

    def readers(self, part: str) -> list[str]:
        return [consumer for producer, consumer in self.shape.edges if producer == part]

    def shards(self, part: str) -> list[str]:
        return [str(ShardId(part, index)) for index in range(self.shape.segments[part].shards)]

    def status(self) -> FlowTopology:
        return FlowTopology(flow=self.shape, running=bool(self.places), pause=self.pause, replicas=self.places)


def places_of(states: Iterable[NodeStatus], layout: Layout) -> dict[str, tuple[ReplicaPlace, ...]]:
    """Where the replicas of each shard are, and how they are."""
    known = {state.node: state for state in states}
    doing = {
        replica.replica: PlaceState(ReplicaState.STOPPED if replica.reason else replica.state)
        for state in known.values()
        for replica in state.replicas
    }
    out: dict[str, tuple[ReplicaPlace, ...]] = {}
    for replica, node in sorted(layout.placement.items()):
        state = known.get(node, NodeStatus(node=node, state=NodeState.LOST))
        how = _state(replica, state, layout, doing.get(str(replica)))
        place = ReplicaPlace(replica=str(replica), node=node, node_state=state.state, state=how)
        out[str(replica.shard)] = (*out.get(str(replica.shard), ()), place)
    return out


def _state(replica: ReplicaId, node: NodeStatus, layout: Layout, doing: PlaceState | None) -> PlaceState:
    if node.state not in (NodeState.RUNNING, NodeState.STARTING):
        return PlaceState.UNAVAILABLE
    if replica in layout.joining:
        return PlaceState.JOINS
    if replica in layout.held:
        return PlaceState.HOLDS_COPY
    if replica.shard != INGRESS:
        return doing or PlaceState.STARTING
    return PlaceState.LEADS if node.leading else PlaceState.FOLLOWS


# --- as a tree --------------------------------------------------------------------------------------------


def tree(drawing: Drawing) -> Tree:
    """Each part once, below the first part that it reads; where it is read again, its name says where it stands."""
    paused = " [paused]" if drawing.pause is not None else ""
    root = Tree(Text(f"{drawing.shape.name}{paused}", style="bold"))
    if drawing.places:
        ingress = root.add(Text(f"{INGRESS.part}  keeps the log of the sources"))
        ingress.add(_line(str(INGRESS), drawing.places.get(str(INGRESS), ())))
    drawn: set[str] = set()
    for source in drawing.shape.sources:
        _branch(drawing, root, source, drawn)
    return root


def _branch(drawing: Drawing, above: Tree, part: str, drawn: set[str]) -> None:
    if part in drawn:
        above.add(Text(f"{part}  (see above)", style="dim"))
        return
    drawn.add(part)
    branch = above.add(Text(f"{part}  {describe(drawing, part)}"))
    if part in drawing.shape.segments and drawing.places:
        for shard in drawing.shards(part):
            branch.add(_line(shard, drawing.places.get(shard, ())))
    for reader in drawing.readers(part):
        _branch(drawing, branch, reader, drawn)


def describe(drawing: Drawing, part: str) -> str:
    """What a part is, in a few words."""
    if part in drawing.shape.sources:
        return "source"
    if part in drawing.shape.sinks:
        return "sink, read by subscribers" if drawing.shape.sinks[part].client else "sink"
    facts = drawing.shape.segments[part]
    text = f"segment, {counted(facts.shards, 'shard')} x {counted(facts.replicas, 'replica')}"
    text += "" if facts.ha == "active" else f", {facts.ha}"
    others = drawing.inputs(part)[1:]
    return f"{text}, also reads {', '.join(others)}" if others else text


def _line(shard: str, places: Sequence[ReplicaPlace]) -> Text:
    line = Text(f"{shard}  ", style="cyan")
    if not places:
        return line.append("on no node", style="red")
    for number, place in enumerate(places):
        line.append(", " if number else "", style="default")
        line.append(place.node, style="default")
        told = f"node {place.node_state}" if place.state is PlaceState.UNAVAILABLE else place.state.value
        line.append(f" ({told})", style=COLOURS.get(place.state, "red"))
    return line


# --- for Graphviz -----------------------------------------------------------------------------------------


def dot(drawing: Drawing) -> str:
    """The same for ``dot -Tsvg``."""
    lines = [f"digraph {_quoted(drawing.shape.name)} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    lines += [f"  {_quoted(name)} [shape=cds];" for name in drawing.shape.sources]
    for part in drawing.shape.segments:
        shown = [
            f"{shard}: {', '.join(place.node for place in drawing.places[shard])}"
            for shard in drawing.shards(part)
            if shard in drawing.places
        ]
        label = "\\n".join([part, *(shown or [describe(drawing, part)])])
        lines.append(f"  {_quoted(part)} [label={_quoted(label)}, style=rounded];")
    lines += [f"  {_quoted(name)} [shape=note];" for name in drawing.shape.sinks]
    lines += [f"  {_quoted(producer)} -> {_quoted(consumer)};" for producer, consumer in drawing.shape.edges]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
