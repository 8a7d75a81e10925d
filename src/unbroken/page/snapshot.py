"""What is known of a flow at one moment, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.coordination.documents import Suspicion
from unbroken.observe.status.node import NodeStatus, PauseStatus
from unbroken.observe.status.shape import FlowShape
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout
from unbroken.protocol.values.notices import Reported


@dataclass(frozen=True)
class FlowSnapshot:
    """A flow at ``time_ms``: the nodes' own words, and the documents about them.

    ``local`` are the nodes whose processes the page can reach, ``frozen`` those of them that are stopped at the
    moment. ``trouble`` says why something is not known.
    """

    time_ms: int
    flow: str
    states: tuple[NodeStatus, ...] = ()
    layout: Layout | None = None
    suspicions: tuple[Suspicion, ...] = ()
    history: tuple[Reported, ...] = ()
    zookeeper_away: bool = False
    local: frozenset[NodeId] = frozenset()
    frozen: frozenset[NodeId] = frozenset()
    trouble: str = ""
    by_node: Mapping[NodeId, NodeStatus] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_node", {state.node: state for state in self.states})

    @property
    def newest(self) -> NodeStatus | None:
        """The status of a node that goes by the newest layout; None while no node has its place."""
        placed = [state for state in self.states if state.placed]
        return max(placed, key=lambda state: state.layout_version or 0, default=None)

    @property
    def shape(self) -> FlowShape | None:
        """What the flow consists of; None while no node has begun."""
        return None if self.newest is None else self.newest.flow

    @property
    def pause(self) -> PauseStatus | None:
        """Since when and why no source is read."""
        return None if self.newest is None else self.newest.pause
