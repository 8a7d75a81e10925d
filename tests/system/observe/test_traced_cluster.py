"""A real flow on two nodes that exports its traces to a collector, before and after one of them is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.faults import strike
from kit.places import FLOWS
from kit.support import wait_until
from kit.tracing.receiver import Receiver, Told
from unbroken.local.launcher import LocalCluster
from unbroken.observe.tracing.ids import Ids
from unbroken.observe.tracing.otel import OtelExporter, open_exporter
from unbroken.observe.tracing.spans import Span
from unbroken.testing.faults import Kill

COUNTED = FLOWS / "counted.py"
FIRST_S, NOTICED_S = 300.0, 180.0
"""Deadlines for a machine with other things to do."""


def exporter(monkeypatch: pytest.MonkeyPatch, receiver: Receiver, **more: str) -> OtelExporter:
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "5", **more}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    out = open_exporter("flow", "a", "run")
    assert out is not None
    return out


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_spans_come_over_the_wire_as_they_are(monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    ids = Ids("run")
    with Receiver() as receiver:
        opened = exporter(monkeypatch, receiver, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
        attributes = {"unbroken.sources": ("x", "y"), "unbroken.rows": 3, "unbroken.written": True}
        child = Span("child", ids.lead(1), None, 5, 7, attributes, links=(ids.cut(1),))  # type: ignore[arg-type]
        assert opened.export([child])
        (told,) = receiver.spans()
        assert told == Told(
            "flow",
            "a",
            "child",
            ids.lead(1).trace,
            ids.lead(1).span,
            0,
            {"unbroken.sources": ["x", "y"], "unbroken.rows": 3, "unbroken.written": True},
            (ids.cut(1).span,),
        )
        receiver.refuse = True
        assert not opened.export([child])
        opened.close()


RECEIPTS = 4
"""Of two shards with two replicas each: the first copy of a unit, from wherever it came."""


def connected(receiver: Receiver, trace: int) -> bool:
    """Whether all receipts of a trace have arrived, and no span follows one that has not."""
    spans = [span for span in receiver.spans() if span.trace == trace]
    if sum(span.name == "receive sums" for span in spans) < RECEIPTS:
        return False
    return {span.parent for span in spans} <= {0, *(span.span for span in spans)}


def whole(receiver: Receiver) -> list[int]:
    """The traces of pulses that both nodes have exported: from the cut to every sink, by both replicas."""
    traces: dict[int, list[Told]] = {}
    for span in receiver.spans():
        traces.setdefault(span.trace, []).append(span)
    return [
        trace
        for trace, spans in traces.items()
        if len({span.node for span in spans if span.name == "micro-batch sums"}) == 2
        and {"cut", "deliver parquet", "deliver jsonl"} <= {span.name for span in spans}
    ]


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_the_spans_of_two_nodes_are_one_trace_and_a_killed_node_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "counted.py"
    file.write_text(COUNTED.read_text().replace('pulse_min="500ms")', 'pulse_min="500ms", traces=3)'))
    with Receiver() as receiver:
        settings = {"FLOW_OUT": str(tmp_path / "out"), "FLOW_NODES": "2", "FLOW_SECONDS": "3600"}
        settings |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with LocalCluster(file, tmp_path / "state", supervise=False, metrics_port=0) as cluster:
            cluster.start()
            cluster.wait_ready(FIRST_S)
            wait_until(lambda: len(whole(receiver)) > 3, FIRST_S, lambda: f"{len(receiver.spans())} spans")
            for trace in whole(receiver):
                # Each node exports by itself, and a span may arrive before the one that it follows.
                wait_until(lambda: connected(receiver, trace), NOTICED_S, lambda: f"the spans of {trace:x}")  # noqa: B023
                check_trace([span for span in receiver.spans() if span.trace == trace])
            assert all(state.traces is not None and state.traces.exported > 0 for state in cluster.status())
            leader = next(state.node for state in cluster.status() if state.leading)
            strike(cluster, Kill(leader))
            wait_until(lambda: receiver.spans("miss a node"), NOTICED_S, "the survivor has gone on")
            check_loss(receiver, leader)


def check_trace(spans: list[Told]) -> None:
    assert {span.service for span in spans} == {"counted"}
    assert {span.node for span in spans} == {"node-1", "node-2"}
    (root,) = [span for span in spans if span.name == "cut"]
    assert root.parent == 0 and root.attributes["unbroken.pulse"] % 3 == 0 and root.attributes["unbroken.rows"] > 0
    known = {span.span: span for span in spans}
    receipts = [span for span in spans if span.name == "receive sums"]
    assert len(receipts) == RECEIPTS
    for span in receipts:
        parent = known[span.parent]
        assert parent.name == "read numbers" and parent.node == span.attributes["unbroken.sender"]
    for span in (span for span in spans if span.name.startswith("deliver")):
        assert [up.name for up in way_up(span, known)] == ["offer sums", "micro-batch sums", "receive sums", *READ]


READ = ("read numbers", "cut")


def way_up(span: Told, known: dict[int, Told]) -> list[Told]:
    out = []
    while span.parent:
        span = known[span.parent]
        out.append(span)
    return out


def check_loss(receiver: Receiver, lost: str) -> None:
    (loss,) = receiver.spans("miss a node")
    assert loss.node != lost and loss.attributes["unbroken.lost_node"] == lost
    assert loss.attributes["unbroken.outcome"] == "gone on without"
    (lead,) = receiver.spans("lead the ingress")
    assert (lead.trace, lead.parent, lead.node) == (loss.trace, loss.span, loss.node)
    pulses = {span.attributes["unbroken.pulse"] for span in receiver.spans("cut")}
    wait_until(
        lambda: any(span.attributes["unbroken.pulse"] > max(pulses) for span in receiver.spans("deliver")),
        NOTICED_S,
        "later pulses are traced by the survivor alone",
    )
    linked = [span for span in receiver.spans("cut") if loss.span in span.links]
    assert all(span.node == loss.node for span in linked)
