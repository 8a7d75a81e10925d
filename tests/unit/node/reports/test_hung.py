"""Only a call that never comes back ends the life of a node: work that fails and is tried again does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unbroken.node.node import Node
from unbroken.node.reports.hung_calls import HUNG_S
from unbroken.observe.status.node import StuckSource
from unbroken.protocol.values.ids import StreamId

STREAM = StreamId.parse("sums.0>out.0")


def hung(
    busy_s: float = 0.0,
    log_s: float = 0.0,
    sink_s: float = 0.0,
    stuck: StuckSource | None = None,
    ingress: bool = True,
    asking_s: float = 0.0,
) -> str | None:
    health = SimpleNamespace(
        stuck=lambda: {} if stuck is None else {"orders": stuck}, asking_s=lambda: {"orders": asking_s}
    )
    service = (
        SimpleNamespace(busy_s=busy_s, log_busy_s=log_s, feeder=SimpleNamespace(health=health)) if ingress else None
    )
    node: Any = SimpleNamespace(ingress=service, outlets=SimpleNamespace(busy_s=lambda: {STREAM: sink_s}))
    return Node.hung(node)


def test_a_node_that_works_or_waits_is_not_hung() -> None:
    assert hung() is None and hung(ingress=False) is None
    assert hung(HUNG_S - 1, HUNG_S - 1, HUNG_S - 1) is None
    assert hung(stuck=StuckSource(pulse=7, seconds=10 * HUNG_S, trouble="no route to host")) is None, (
        "it is tried again and again"
    )


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (hung(HUNG_S + 1), "ingress"),
        (hung(log_s=HUNG_S + 1), "ingress log"),
        (hung(sink_s=HUNG_S + 1), "sink sums.0>out.0"),
        (hung(stuck=StuckSource(pulse=7, seconds=HUNG_S + 1, hangs=True)), "source orders"),
        (hung(asking_s=HUNG_S + 1), "source orders"),
    ],
)
def test_a_call_that_never_comes_back_is_named(found: str | None, what: str) -> None:
    assert found == f"its thread for {what} has not come back from a call for {HUNG_S + 1:.0f} s"
