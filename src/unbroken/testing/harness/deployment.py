"""A flow on processes of this machine, as the harness runs it; where these processes come from is a detail."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from unbroken.client import Subscription
from unbroken.flow.dataflow import Dataflow
from unbroken.observe.status.node import NodeStatus
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Notice
from unbroken.testing.injection.ground import Ground


class Deployment(Ground, Protocol):
    """One flow, started once and closed once: its processes, and the ground of the faults that are done to them.

    Two kinds: `LocalDeployment` starts processes for the flow, as `unbroken run` does, and `WarmDeployment` puts it on
    processes of a pool. ``status`` is asked from a thread of its own; everything else is called by one at a time.
    """

    @property
    def flow(self) -> Dataflow: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def zookeeper(self) -> str:
        """The address at which everything about the flow is found."""
        ...

    @property
    def token(self) -> str: ...

    @property
    def gone(self) -> Collection[NodeId]:
        """Nodes that were killed and will not come back by themselves: nobody is to wait for them."""
        ...

    def start(self, ready_s: float, progress: Callable[[str], None]) -> None:
        """Start everything and wait until all nodes run their queries; UnbrokenError if they do not in time."""
        ...

    def status(self) -> list[NodeStatus]:
        """Ask the nodes how they are."""
        ...

    def failure(self) -> str | None:
        """Why a node that nobody has struck is not there; None if there is none."""
        ...

    def tend(self) -> list[Notice]:
        """Restart what has died, if that is what is done here; what has happened since it was last asked."""
        ...

    def subscribe(self, sink: str, after: int = 0) -> Subscription:
        """The results of a client sink behind a unit."""
        ...

    def close(self) -> None:
        """End every process; closing again does nothing."""
        ...
