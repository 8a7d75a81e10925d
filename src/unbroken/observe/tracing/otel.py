"""Spans for OpenTelemetry: the only module that imports it.

The usual environment variables hold, as far as they make sense here: where to export to and how (``OTEL_EXPORTER_*``,
``OTEL_TRACES_EXPORTER``), what the resource is called (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``), limits of
spans (``OTEL_SPAN_*``) and of what waits (``OTEL_BSP_*``). Samplers are not used: all nodes have to choose the same
pulses, which the flow's setting sees to.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_BSP_SCHEDULE_DELAY,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_EXPORTER_OTLP_TRACES_PROTOCOL,
    OTEL_SDK_DISABLED,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from unbroken import __version__
from unbroken.errors import UnbrokenError
from unbroken.observe.tracing.ids import SpanPlace
from unbroken.observe.tracing.spans import Span
from unbroken.observe.tracing.tracing import Limits

log = logging.getLogger(__name__)

PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "client": trace.SpanKind.CLIENT,
}


class _ToldIds(IdGenerator):
    """Gives out the names that the next span is to have."""

    def __init__(self) -> None:
        self.next = SpanPlace(1, 1)

    def generate_trace_id(self) -> int:
        return self.next.trace

    def generate_span_id(self) -> int:
        return self.next.span


class _Collected(SpanProcessor):
    """Keeps spans that have ended until they are taken away."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class OtelExporter:
    """Turns spans into OpenTelemetry's and gives them to one of its exporters."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._ids = _ToldIds()
        self._collected = _Collected()
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(self._collected)
        self._tracer = provider.get_tracer("unbroken", __version__)

    def export(self, spans: Sequence[Span]) -> bool:
        for span in spans:
            self._write(span)
        batch, self._collected.spans = self._collected.spans, []
        return not batch or self._exporter.export(batch) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()

    def _write(self, span: Span) -> None:
        self._ids.next = span.place
        above = trace.INVALID_SPAN if span.parent is None else trace.NonRecordingSpan(_context(span.parent))
        written = self._tracer.start_span(
            span.name,
            trace.set_span_in_context(above),
            KINDS[span.kind],
            dict(span.attributes),
            [trace.Link(_context(place)) for place in span.links],
            span.start_ns,
        )
        for moment in span.moments:
            written.add_event(moment.name, dict(moment.attributes), moment.time_ns)
        if span.failure:
            written.set_status(trace.Status(trace.StatusCode.ERROR, span.failure))
        written.end(span.end_ns)


def _context(place: SpanPlace) -> trace.SpanContext:
    sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.SpanContext(place.trace, place.span, is_remote=True, trace_flags=sampled)


def open_exporter(flow: str, node: str, run: str, environment: Mapping[str, str] = os.environ) -> OtelExporter | None:
    """The exporter that the environment asks for; None if it asks for none."""
    if environment.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return None
    wanted = environment.get(OTEL_TRACES_EXPORTER, "").strip() or "otlp"
    if wanted == "none":
        return None
    if wanted == "otlp":
        said = environment.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or environment.get(OTEL_EXPORTER_OTLP_PROTOCOL)
        protocol = said or "http/protobuf"
        if protocol not in PROTOCOLS:
            raise UnbrokenError(
                f"there is no protocol {protocol!r} for traces; set {OTEL_EXPORTER_OTLP_PROTOCOL} to one of "
                f"{', '.join(PROTOCOLS)}, or leave it out"
            )
        wanted = PROTOCOLS[protocol]
    return OtelExporter(_exporter(wanted), resource_of(flow, node, run))


def _exporter(name: str) -> SpanExporter:
    known = {found.name: found for found in entry_points(group="opentelemetry_traces_exporter")}
    if name not in known:
        raise UnbrokenError(
            f"no exporter {name!r} for traces is installed here. Install the package of OpenTelemetry that has it, or "
            f"set {OTEL_TRACES_EXPORTER} to one of: otlp, console, none"
        )
    try:
        made: SpanExporter = known[name].load()()
    except Exception as error:
        raise UnbrokenError(f"traces cannot be exported by {name}: {error}. Look at the OTEL_* variables.") from error
    return made


def resource_of(flow: str, node: str, run: str) -> Resource:
    """Who the spans are of; what the environment says about the service counts for more than the flow's name."""
    facts = {"unbroken.flow": flow, "unbroken.node": node, "unbroken.run": run, "service.version": __version__}
    ours = {"service.name": flow, "service.instance.id": node, **facts}
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def limits_of(environment: Mapping[str, str] = os.environ) -> Limits:
    """What may wait, by the variables for OpenTelemetry's own queue of spans."""
    usual = Limits()
    delay_ms = _number(environment, OTEL_BSP_SCHEDULE_DELAY, int(usual.delay_s * 1000))
    return Limits(
        _number(environment, OTEL_BSP_MAX_QUEUE_SIZE, usual.queue),
        _number(environment, OTEL_BSP_MAX_EXPORT_BATCH_SIZE, usual.batch),
        delay_ms / 1000,
    )


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return usual
    if not text.isdigit() or not int(text):
        raise UnbrokenError(f"{name} must be a whole number above 0, and is {text!r}")
    return int(text)
