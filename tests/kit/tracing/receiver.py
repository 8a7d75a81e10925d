"""A small collector: takes spans over OTLP/HTTP, as protobuf, and keeps them."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Told:
    """A span as it came over the wire."""

    service: str
    node: str
    name: str
    trace: int
    span: int
    parent: int
    attributes: dict[str, Any]
    links: tuple[int, ...]
    """The spans that it is linked to."""


class Receiver:
    """Listens on a free port of this machine; ``refuse`` makes it turn everything away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[Told] = []
        self.refuse = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                good = self.path == "/v1/traces" and not receiver.refuse
                if good:
                    receiver._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200 if good else 400)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:
                """What comes is looked at by tests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="receiver", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def spans(self, name: str = "") -> list[Told]:
        """All spans, or those whose names begin like that."""
        with self._lock:
            return [told for told in self._told if told.name.startswith(name)]

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            about = {pair.key: pair.value.string_value for pair in group.resource.attributes}
            for scope in group.scope_spans:
                assert scope.scope.name == "unbroken"
                with self._lock:
                    self._told += [_told(about, span) for span in scope.spans]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(30)
        self._server.server_close()


def _told(about: dict[str, str], span: Any) -> Told:
    return Told(
        about["service.name"],
        about["unbroken.node"],
        span.name,
        int.from_bytes(span.trace_id, "big"),
        int.from_bytes(span.span_id, "big"),
        int.from_bytes(span.parent_span_id, "big"),
        {pair.key: _value(pair.value) for pair in span.attributes},
        tuple(int.from_bytes(link.span_id, "big") for link in span.links),
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
