"""A collector of spans: takes OTLP over HTTP as the real ones do, and keeps what came."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Span(NamedTuple):
    """One that has arrived, in Python's terms."""

    name: str
    kind: int
    trace_id: str
    parent_id: str
    seconds: float
    start_s: float  # since 1970
    error: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """Spans in the order in which they came, and the paths that they were posted to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.content = b""
        self.spans: list[Span] = []

    def take(self, path: str, content: bytes) -> None:
        self.paths.append(path)
        self.content += content
        request = ExportTraceServiceRequest.FromString(content)
        for group in request.resource_spans:
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.spans.append(_span_of(span, group.resource))

    def wait_for(self, count: int) -> list[Span]:
        """So many; they are sent together, every few seconds."""
        end_s = time.monotonic() + 20
        while len(self.spans) < count:
            assert time.monotonic() < end_s, f"{len(self.spans)} spans came, and not {count}"
            time.sleep(0.01)
        return self.spans


def _span_of(span: Any, resource: Any) -> Span:
    return Span(
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        parent_id=span.parent_span_id.hex(),
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        start_s=span.start_time_unix_nano / 1e9,
        error=span.status.message if span.status.code == 2 else "",
        attributes=_values(span.attributes),
        resource=_values(resource.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """One on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                content = gzip.decompress(content)
            assert self.headers["content-type"] == "application/x-protobuf"
            collector.take(self.path, content)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
