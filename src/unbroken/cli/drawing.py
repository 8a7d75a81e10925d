"""A flow as a drawing in text: its parts, how they hang together, and where the replicas are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.wording import counted

if TYPE_CHECKING:
    from unbroken.protocol.values.layout import Layout

COLOURS = {"active": "green", "stands by": "green", "holds a copy": "green", "joins": "yellow"}
"""States of a replica that are as they should be, or will be; all others are shown as trouble."""


@dataclass(frozen=True)
class Place:
    """One replica of a shard: where it is and how it is."""

    replica: str
    node: str
    state: str

    def to_json(self) -> dict[str, str]:
        return {"replica": self.replica, "node": self.node, "state": self.state}


@dataclass(frozen=True)
class Drawing:
    """The parts of a flow in the order of its data; ``places`` by shard, if it runs.

    ``segments`` and ``sinks`` have the facts that a node's status tells of them.
    """

    name: str
    sources: tuple[str, ...]
    segments: Mapping[str, Mapping[str, Any]]
    sinks: Mapping[str, Mapping[str, Any]]
    edges: tuple[tuple[str, str], ...]
    places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    pause: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, shape: Mapping[str, Any]) -> Drawing:
        """A flow that does not run: ``unbroken.node.status.flow_shape``."""
        edges = tuple((str(producer), str(consumer)) for producer, consumer in shape["edges"])
        return cls(str(shape["name"]), tuple(shape["sources"]), shape["segments"], shape["sinks"], edges)

    @classmethod
    def running(cls, states: Sequence[Mapping[str, Any]], layout: Layout) -> Drawing:
        """A flow that runs, by what its nodes say and the layout they go by."""
        told = max((state for state in states if "flow" in state), key=lambda state: int(state["layout_version"]))
        drawing = cls.of(told["flow"])
        return cls(
            drawing.name,
            drawing.sources,
            drawing.segments,
            drawing.sinks,
            drawing.edges,
            places_of(states, layout),
            told.get("pause"),
        )

    def inputs(self, part: str) -> list[str]:
        return [producer for producer, consumer in self.edges if consumer == part]

    def readers(self, part: str) -> list[str]:
        return [consumer for producer, consumer in self.edges if producer == part]

    def shards(self, part: str) -> list[str]:
        return [str(ShardId(part, index)) for index in range(int(self.segments[part]["shards"]))]

    def to_json(self) -> dict[str, Any]:
        placed = {shard: [place.to_json() for place in places] for shard, places in self.places.items()}
        return {
            "flow": self.name,
            "sources": list(self.sources),
            "segments": {name: dict(facts) for name, facts in self.segments.items()},
            "sinks": {name: dict(facts) for name, facts in self.sinks.items()},
            "edges": [list(edge) for edge in self.edges],
            "running": bool(self.places),
            "pause": None if self.pause is None else dict(self.pause),
            "replicas": placed,
        }


def places_of(states: Iterable[Mapping[str, Any]], layout: Layout) -> dict[str, tuple[Place, ...]]:
    """Where the replicas of each shard are, and how they are."""
    known = {str(state["node"]): state for state in states}
    doing = {
        str(replica["replica"]): "stopped" if replica.get("reason") else str(replica["state"])
        for state in known.values()
        for replica in state.get("replicas", ())
    }
    out: dict[str, tuple[Place, ...]] = {}
    for replica, node in sorted(layout.placement.items()):
        state = known.get(node, {"state": "lost"})
        place = Place(str(replica), node, _state(replica, state, layout, doing.get(str(replica))))
        out[str(replica.shard)] = (*out.get(str(replica.shard), ()), place)
    return out


def _state(replica: ReplicaId, node: Mapping[str, Any], layout: Layout, doing: str | None) -> str:
    if node["state"] not in ("running", "starting"):
        return f"node {node['state']}"
    if replica in layout.joining:
        return "joins"
    if replica in layout.held:
        return "holds a copy"
    if replica.shard != INGRESS:
        return doing or "starting"
    return "leads" if node.get("ingress", {}).get("leading") else "follows"


# --- as a tree --------------------------------------------------------------------------------------------


def tree(drawing: Drawing) -> Tree:
    """Each part once, below the first part that it reads; where it is read again, its name says where it stands."""
    paused = " [paused]" if drawing.pause is not None else ""
    root = Tree(Text(f"{drawing.name}{paused}", style="bold"))
    if drawing.places:
        ingress = root.add(Text(f"{INGRESS.part}  keeps the log of the sources"))
        ingress.add(_line(str(INGRESS), drawing.places.get(str(INGRESS), ())))
    drawn: set[str] = set()
    for source in drawing.sources:
        _branch(drawing, root, source, drawn)
    return root


def _branch(drawing: Drawing, above: Tree, part: str, drawn: set[str]) -> None:
    if part in drawn:
        above.add(Text(f"{part}  (see above)", style="dim"))
        return
    drawn.add(part)
    branch = above.add(Text(f"{part}  {describe(drawing, part)}"))
    if part in drawing.segments and drawing.places:
        for shard in drawing.shards(part):
            branch.add(_line(shard, drawing.places.get(shard, ())))
    for reader in drawing.readers(part):
        _branch(drawing, branch, reader, drawn)


def describe(drawing: Drawing, part: str) -> str:
    """What a part is, in a few words."""
    if part in drawing.sources:
        return "source"
    if part in drawing.sinks:
        return "sink, read by subscribers" if drawing.sinks[part]["client"] else "sink"
    facts = drawing.segments[part]
    count, copies = int(facts["shards"]), int(facts["replicas"])
    text = f"segment, {counted(count, 'shard')} x {counted(copies, 'replica')}"
    text += "" if facts["ha"] == "active" else f", {facts['ha']}"
    others = drawing.inputs(part)[1:]
    return f"{text}, also reads {', '.join(others)}" if others else text


def _line(shard: str, places: Sequence[Place]) -> Text:
    line = Text(f"{shard}  ", style="cyan")
    if not places:
        return line.append("on no node", style="red")
    for number, place in enumerate(places):
        line.append(", " if number else "", style="default")
        line.append(place.node, style="default")
        line.append(f" ({place.state})", style=COLOURS.get(place.state, "green" if _leads(place) else "red"))
    return line


def _leads(place: Place) -> bool:
    return place.state in ("leads", "follows")


# --- for Graphviz -----------------------------------------------------------------------------------------


def dot(drawing: Drawing) -> str:
    """The same for ``dot -Tsvg``."""
    lines = [f"digraph {_quoted(drawing.name)} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    lines += [f"  {_quoted(name)} [shape=cds];" for name in drawing.sources]
    for part in drawing.segments:
        shown = [
            f"{shard}: {', '.join(place.node for place in drawing.places[shard])}"
            for shard in drawing.shards(part)
            if shard in drawing.places
        ]
        label = "\\n".join([part, *(shown or [describe(drawing, part)])])
        lines.append(f"  {_quoted(part)} [label={_quoted(label)}, style=rounded];")
    lines += [f"  {_quoted(name)} [shape=note];" for name in drawing.sinks]
    lines += [f"  {_quoted(producer)} -> {_quoted(consumer)};" for producer, consumer in drawing.edges]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
