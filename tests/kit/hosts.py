"""What hosts replicas, on as much of a node as a test needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from unbroken.node.replicas.hosting import ReplicaHost


def hosting(**of_node: Any) -> ReplicaHost[Any]:
    """Hosting on a node of which only these parts are looked at."""
    return ReplicaHost(cast(Any, SimpleNamespace(**of_node)))
