"""What is known of a flow at one moment, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unbroken.coordination.documents import Suspicion
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout

State = Mapping[str, Any]
"""The status of a node, as ``node/status.py`` makes it."""


@dataclass(frozen=True)
class Sentence:
    """One thing that happened, and who says so."""

    time_ms: int
    node: NodeId
    text: str


@dataclass(frozen=True)
class Snapshot:
    """A flow at ``time_ms``: the nodes' own words, and the documents about them.

    ``local`` are the nodes whose processes the page can reach, ``frozen`` those of them that are stopped at the
    moment. ``trouble`` says why something is not known.
    """

    time_ms: int
    flow: str
    states: tuple[State, ...] = ()
    layout: Layout | None = None
    suspicions: tuple[Suspicion, ...] = ()
    history: tuple[Sentence, ...] = ()
    zookeeper_away: bool = False
    local: frozenset[NodeId] = frozenset()
    frozen: frozenset[NodeId] = frozenset()
    trouble: str = ""
    by_node: Mapping[NodeId, State] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_node", {str(state["node"]): state for state in self.states})

    @property
    def shape(self) -> Mapping[str, Any] | None:
        """What the flow consists of, as a node with the newest layout says; None while no node has begun."""
        told = [state for state in self.states if "flow" in state]
        newest = max(told, key=lambda state: int(state.get("layout_version", 0)), default=None)
        return None if newest is None else newest["flow"]

    @property
    def pause(self) -> dict[str, Any] | None:
        """Since when and why no source is read, as a node with the newest layout says."""
        newest = max(self.states, key=lambda state: int(state.get("layout_version", 0)), default={})
        found: dict[str, Any] | None = newest.get("pause")
        return found
