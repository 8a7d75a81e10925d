"""Two real nodes with real queries and a sink, traced: one trace for each pulse, with spans of both nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import functions as F

from kit.loop_guard import guarded
from kit.support import wait_until
from kit.two_nodes import TwoNodes
from unbroken import Dataflow, Generator, JsonLines
from unbroken.node.node import Node
from unbroken.node.traces import make_traces
from unbroken.observe.tracing.ids import Ids
from unbroken.observe.tracing.otel import OtelExporter
from unbroken.observe.tracing.tracing import Limits, Tracing
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.values.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNITS, ROWS, EVERY = 8, 20, 2
TRACED = [pulse for pulse in range(1, UNITS + 1) if pulse % EVERY == 0]
IDS = Ids("run")


def numbers(start: int, stop: int, seed: int) -> pa.Table:
    index = np.arange(start, stop)
    return pa.table({"k": index % 5, "v": index})


def sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.sum("v").alias("total"))


def of(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def facts(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@pytest.mark.timeout(900)
def test_both_nodes_tell_their_part_of_a_pulse(spark: SparkSession, tmp_path: Path) -> None:
    flow = Dataflow("traced", nodes=2, pulse_min="20ms", pulse_start="20ms", traces=EVERY)
    rows = Generator(numbers, schema="k long, v long", rate=None, batch_rows=ROWS, limit=ROWS * UNITS)
    flow.source("numbers", rows)
    flow.segment("numbers", name="sums", output_mode="update")(sums)
    flow.sink("files", "sums", JsonLines(str(tmp_path / "out")))
    memory = InMemorySpanExporter()

    def traced(node: Node, layout: Layout, sync: InSync) -> Tracing:
        exporter = OtelExporter(memory, Resource({"unbroken.node": node.name}))
        out = make_traces(node, "run", layout, sync, exporter, Limits(delay_s=0.05))
        out.start()
        return out

    def found(trace: int) -> list[ReadableSpan]:
        return [span for span in memory.get_finished_spans() if span.context and span.context.trace_id == trace]

    def whole(trace: int) -> bool:
        """Committed by both replicas, and with the sink."""
        return len(of(found(trace), "micro-batch sums")) == 2 and len(of(found(trace), "deliver files")) >= 1

    with guarded() as guard, TwoNodes(flow, spark, tmp_path / "nodes", traced) as cluster:
        for trace in [IDS.cut(pulse).trace for pulse in TRACED]:
            told = partial(lambda trace: f"{[span.name for span in found(trace)]}", trace)
            wait_until(partial(whole, trace), 180, told)
        counts = {name: node.status().traces for name, node in cluster.nodes.items()}
        assert guard.guarded > 20 and not guard.reads, f"read by other threads than the loop: {set(guard.reads)}"
    assert all(count and count.dropped == count.failed == 0 and count.exported > 0 for count in counts.values()), counts
    for pulse in TRACED:
        check_pulse(pulse, found(IDS.cut(pulse).trace))
    batches = of(list(memory.get_finished_spans()), "micro-batch sums")
    split = [batch for batch in batches if "unbroken.spark.addBatch_ms" in facts(batch)]
    assert split, "Spark has told of some of them where their time went"
    names = {span.name for span in memory.get_finished_spans() if span.context and facts(span).get("unbroken.pulse")}
    assert names == {"cut", "read numbers", "receive sums", "micro-batch sums", "offer sums", "deliver files"}
    pulses = {facts(span)["unbroken.pulse"] for span in memory.get_finished_spans() if "unbroken.pulse" in facts(span)}
    assert pulses == set(TRACED)


def check_pulse(pulse: int, spans: list[ReadableSpan]) -> None:
    assert {span.resource.attributes["unbroken.node"] for span in spans} == {"a", "b"}
    (root,) = of(spans, "cut")
    assert facts(root)["unbroken.rows"] == ROWS and root.parent is None
    assert len(of(spans, "read numbers")) == len(of(spans, "receive sums")) == len(of(spans, "offer sums")) == 2
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    parents = {span.name: names[span.parent.span_id] for span in spans if span.parent is not None}
    assert parents == {
        "read numbers": "cut",
        "receive sums": "read numbers",
        "micro-batch sums": "receive sums",
        "offer sums": "micro-batch sums",
        "deliver files": "offer sums",
    }
    written = [facts(span)["unbroken.written"] for span in of(spans, "deliver files")]
    assert written.count(True) == 1, f"pulse {pulse} is written once: {written}"
