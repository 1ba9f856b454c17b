# pyright: strict
"""Spans for OpenTelemetry: one a request, with the GenAI attributes that vLLM's have.

Written when a request has ended, sent by a thread of the SDK's over OTLP/HTTP, below the span that
the caller named by W3C trace context. No text of prompts or answers is in them. The SDK is an
extra, and is imported only where spans are wanted.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from specserve import __version__
from specserve.api.call import ChatMessage, GenerateCall, TraceContext
from specserve.api.events import Finished, SpecRecord
from specserve.errors import InvalidField, SpecserveError, Unsupported

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

SETTING = "telemetry.otlp_endpoint"
_PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_PATH = "/v1/traces"  # of a collector, where the address names none
_TIMEOUT_S = 2.0  # of one attempt to send, which a stop waits for at most
# Of what a client wrote and nobody has looked at: a request that is refused has a span, too.
_MAX_CHARS = 256
_MAX_INT = 2**63 - 1  # that a span can hold
_SPAN = "llm_request"
_QUOTING = (InvalidField.code, Unsupported.code)  # their texts begin with a field
_FIELDS = {  # of sampling parameters
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "n": "gen_ai.request.n",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has ended, just now."""

    call: GenerateCall
    request_id: str
    outcome: Finished | SpecserveError
    spec: SpecRecord  # what speculation did for it
    total_s: float


def traces_url(endpoint: str) -> str:
    """Where spans are posted to. Raises InvalidField for what is no URL."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problem = f"is {endpoint!r}; it must be a URL such as http://127.0.0.1:4318"
        raise InvalidField(SETTING, problem)
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_PATH}"


def require_traces(endpoint: str) -> None:
    """Raises InvalidField for an endpoint that is none, Unsupported without what makes spans."""
    traces_url(endpoint)
    try:
        for package in _PACKAGES:
            importlib.import_module(package)
    except ImportError as error:
        raise Unsupported(
            f"{SETTING}: needs OpenTelemetry ({error.name} is missing); "
            "install it with: pip install 'specserve[otel]'"
        ) from error


class Tracer:
    """Makes spans of requests. `close` sends what is left."""

    def __init__(self, endpoint: str, model: Callable[[], str]) -> None:
        """`model` names what is served; "" before that is known."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        own = Resource({"service.name": "specserve", "service.version": __version__})
        resource = own.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME is the user's
        exporter = OTLPSpanExporter(traces_url(endpoint), timeout=_TIMEOUT_S)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("specserve", __version__)
        self._model = model

    def record(self, served: Served) -> None:
        """The span of a request that has ended just now."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        end_ns = time.time_ns()
        span = self._tracer.start_span(
            _SPAN,
            context=_parent(served.call.trace),
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(served, self._model())),
            start_time=end_ns - int(served.total_s * 1e9),
        )
        if isinstance(served.outcome, SpecserveError):
            span.set_status(Status(StatusCode.ERROR, _status_of(served.outcome)))
        span.end(end_ns)

    def close(self) -> None:
        """Send what is left, if that can be done soon."""
        self._provider.shutdown()


def trace_context(headers: Mapping[str, str]) -> TraceContext:
    """Of a request's headers or metadata, whose names are in lower case."""
    return TraceContext(headers.get("traceparent", ""), headers.get("tracestate", ""))


def _parent(trace: TraceContext) -> "Context":
    """An empty one where the caller named no span, or none that can be read."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _status_of(error: SpecserveError) -> str:
    """What failed, in no client's words.

    Of a request that is refused, its field alone: what is said of that may quote the prompt, by a
    chat template's own error for instance.
    """
    text = str(error)
    return text.partition(":")[0] if error.code in _QUOTING else text


def _attributes(served: Served, model: str) -> "Iterator[tuple[str, AttributeValue]]":
    call, outcome = served.call, served.outcome
    is_chat = isinstance(call.prompt, list) and isinstance(next(iter(call.prompt), 0), ChatMessage)
    yield "gen_ai.operation.name", "chat" if is_chat else "text_completion"
    yield "gen_ai.request.model", (call.model or model)[:_MAX_CHARS]
    yield "gen_ai.response.model", model
    yield "gen_ai.request.id", served.request_id[:_MAX_CHARS]
    for field, name in _FIELDS.items():
        yield name, max(-_MAX_INT, min(getattr(call.sampling, field), _MAX_INT))
    if call.seed is not None:
        yield "gen_ai.request.seed", str(call.seed)  # it may have 64 bits; theirs have a sign
    yield "gen_ai.latency.e2e", served.total_s
    if isinstance(outcome, SpecserveError):
        yield "error.type", outcome.code
    else:
        yield from _of_finished(outcome, served.spec)


def _of_finished(done: Finished, spec: SpecRecord) -> "Iterator[tuple[str, AttributeValue]]":
    usage, timings = done.usage, done.timings
    yield "gen_ai.response.finish_reasons", [str(each.finish_reason) for each in done.samples]
    # As vLLM has them, then as the conventions do by now.
    yield "gen_ai.usage.prompt_tokens", usage.num_prompt_tokens
    yield "gen_ai.usage.completion_tokens", usage.num_generated_tokens
    yield "gen_ai.usage.input_tokens", usage.num_prompt_tokens
    yield "gen_ai.usage.output_tokens", usage.num_generated_tokens
    yield "gen_ai.usage.cache_read.input_tokens", usage.num_cached_tokens
    yield "gen_ai.usage.num_sequences", len(done.samples)
    yield "gen_ai.latency.time_in_queue", timings.queue_s
    yield "gen_ai.latency.time_to_first_token", timings.time_to_first_token_s
    yield "gen_ai.latency.time_in_model_prefill", timings.prefill_s
    yield "gen_ai.latency.time_in_model_decode", timings.decode_s
    yield "gen_ai.latency.time_in_model_inference", timings.prefill_s + timings.decode_s
    yield "specserve.spec_decode.num_drafts", spec.num_drafts
    yield "specserve.spec_decode.num_draft_tokens", spec.num_draft_tokens
    yield "specserve.spec_decode.num_accepted_tokens", spec.num_accepted_tokens
