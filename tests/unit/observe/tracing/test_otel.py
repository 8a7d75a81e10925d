"""Spans as OpenTelemetry has them, and what its environment variables change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from kit.places import FLOWS
from unbroken.errors import FlowError, UnbrokenError
from unbroken.flow import tracing as installed
from unbroken.flow.loading import load_flow
from unbroken.flow.plan import build_topology
from unbroken.observe.tracing.ids import Ids, SpanPlace
from unbroken.observe.tracing.otel import OtelExporter, limits_of, open_exporter, resource_of
from unbroken.observe.tracing.spans import Moment, Span
from unbroken.observe.tracing.tracing import Limits

IDS = Ids("run")
FLOW = FLOWS / "counted.py"


def spans() -> list[Span]:
    root = Span("cut", IDS.cut(7), None, 1_000, 2_000, {"unbroken.sources": ("one", "two"), "unbroken.rows": 3})
    moment = Moment("agreed by the ingress", 1_500, {"unbroken.sender": "b"})
    child = Span(
        "receive sums",
        IDS.within(IDS.cut(7), "child"),
        IDS.cut(7),
        2_000,
        2_500,
        {"unbroken.stable": True},
        (moment,),
        (IDS.lead(2),),
        "consumer",
        "it is away",
    )
    return [root, child]


def exported() -> tuple[ReadableSpan, ReadableSpan]:
    memory = InMemorySpanExporter()
    assert OtelExporter(memory, Resource({"service.name": "x"})).export(spans())
    one, two = memory.get_finished_spans()
    return one, two


def place(span: ReadableSpan) -> SpanPlace:
    context = span.get_span_context()
    assert context is not None
    return SpanPlace(context.trace_id, context.span_id)


def test_spans_keep_their_names_their_parents_and_their_times() -> None:
    root, child = exported()
    assert place(root) == IDS.cut(7) and root.parent is None
    assert place(child) == IDS.within(IDS.cut(7), "child")
    assert child.parent is not None and child.parent.span_id == IDS.cut(7).span
    assert (root.name, root.start_time, root.end_time) == ("cut", 1_000, 2_000)
    assert (child.name, child.start_time, child.end_time) == ("receive sums", 2_000, 2_500)
    assert root.resource.attributes["service.name"] == "x"


def test_spans_keep_all_that_they_tell() -> None:
    root, child = exported()
    assert dict(root.attributes or {}) == {"unbroken.sources": ("one", "two"), "unbroken.rows": 3}
    assert root.status.status_code is StatusCode.UNSET and child.status.status_code is StatusCode.ERROR
    assert child.status.description == "it is away" and child.kind is SpanKind.CONSUMER
    (event,), (link,) = child.events, child.links
    assert (event.name, event.timestamp, dict(event.attributes or {})) == (
        "agreed by the ingress",
        1_500,
        {"unbroken.sender": "b"},
    )
    assert SpanPlace(link.context.trace_id, link.context.span_id) == IDS.lead(2)


@pytest.mark.parametrize("sampler", ["always_off", "parentbased_traceidratio"])
def test_samplers_of_the_environment_do_not_tear_traces_apart(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0001")
    assert len(exported()) == 2


def test_an_exporter_that_has_ended_takes_nothing() -> None:
    exporter = OtelExporter(InMemorySpanExporter(), Resource({}))
    exporter.close()
    assert not exporter.export(spans())


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    yield monkeypatch


def test_the_environment_says_where_spans_go(clean: pytest.MonkeyPatch) -> None:
    def opened(**environment: str) -> OtelExporter | None:
        return open_exporter("flow", "a", "run", environment)

    clean.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    usual = opened()
    assert usual is not None and isinstance(usual._exporter, OTLPSpanExporter)
    assert usual._exporter._endpoint == "http://collector:4318/v1/traces"
    console = opened(OTEL_TRACES_EXPORTER="console")
    assert console is not None and isinstance(console._exporter, ConsoleSpanExporter)
    assert opened(OTEL_TRACES_EXPORTER="none") is None
    assert opened(OTEL_SDK_DISABLED="true") is None
    with pytest.raises(UnbrokenError, match=r"no exporter 'zipkin'.*OTEL_TRACES_EXPORTER"):
        opened(OTEL_TRACES_EXPORTER="zipkin")
    with pytest.raises(UnbrokenError, match=r"'otlp_proto_grpc'"):
        opened(OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    with pytest.raises(UnbrokenError, match=r"no protocol 'http/json'.*http/protobuf"):
        opened(OTEL_EXPORTER_OTLP_PROTOCOL="http/json")


def test_the_resource_is_the_flow_unless_the_environment_says_otherwise(clean: pytest.MonkeyPatch) -> None:
    usual = resource_of("clicks", "node-1", "abc").attributes
    assert (usual["service.name"], usual["service.instance.id"]) == ("clicks", "node-1")
    assert (usual["unbroken.run"], usual["unbroken.node"]) == ("abc", "node-1")
    clean.setenv("OTEL_SERVICE_NAME", "shop")
    clean.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    told = resource_of("clicks", "node-1", "abc").attributes
    assert (told["service.name"], told["deployment.environment"], told["unbroken.flow"]) == ("shop", "test", "clicks")


def test_limits_are_those_of_the_usual_processor() -> None:
    assert limits_of({}) == Limits()
    told = {"OTEL_BSP_MAX_QUEUE_SIZE": "10", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5", "OTEL_BSP_SCHEDULE_DELAY": "250"}
    assert limits_of(told) == Limits(10, 5, 0.25)
    with pytest.raises(UnbrokenError, match="OTEL_BSP_MAX_QUEUE_SIZE must be a whole number"):
        limits_of({"OTEL_BSP_MAX_QUEUE_SIZE": "many"})


@pytest.fixture
def flow_file(tmp_path: Path) -> Path:
    text = FLOW.read_text().replace('pulse_min="500ms")', 'pulse_min="500ms", traces=10)')
    assert "traces=10" in text
    file = tmp_path / "flow.py"
    file.write_text(text)
    return file


def test_a_flow_that_asks_for_traces_is_told_what_to_install(
    flow_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_OUT", str(tmp_path / "out"))
    build_topology(load_flow(flow_file))
    monkeypatch.setattr(installed, "NEEDED", ("opentelemetry.not_there", "no_such_package.trace"))
    assert installed.missing() == ["opentelemetry.not_there", "no_such_package.trace"]
    with pytest.raises(FlowError) as raised:
        build_topology(load_flow(flow_file))
    (problem,) = raised.value.problems
    assert problem.where.endswith("setting traces") and "not installed" in problem.what
    assert "pip install 'unbroken[otel]'" in problem.remedy
    build_topology(load_flow(FLOW))  # It does not ask for them.


def test_nothing_of_opentelemetry_is_imported_unless_asked_for() -> None:
    import subprocess
    import sys

    code = "import sys, unbroken.node.main; print([n for n in sys.modules if n.startswith('opentelemetry')])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.strip() == "[]"
