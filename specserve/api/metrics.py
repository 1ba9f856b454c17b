# pyright: strict
"""What Prometheus reads: histograms over requests, and the target's counts (`target_metrics`).

Names are those of vLLM where the meaning is the same, below `specserve:`. The four counters of
speculative decoding come below `vllm:` as well, since load generators look for them there. All have
the label `model_name`.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from specserve.api.events import Finished
from specserve.api.target_metrics import MODEL, PREFIX, TargetMetrics
from specserve.types import FinishReason, Load

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_INTER_TOKEN = "inter_token_latency_seconds"
_TIMES = {
    "time_to_first_token_seconds": "Seconds from a request's arrival to its first token.",
    _INTER_TOKEN: "Seconds between two rounds that bring tokens of one sample, one or several.",
    "request_time_per_output_token_seconds": (
        "Seconds of decoding by token of a sample after its first, a request's mean."
    ),
    "e2e_request_latency_seconds": "Seconds from a request's arrival to its end.",
    "request_queue_time_seconds": "Seconds that a request waited for a place.",
    "request_inference_time_seconds": "Seconds from a request's first forward to its end.",
    "request_prefill_time_seconds": "Seconds from a request's first forward to its first token.",
    "request_decode_time_seconds": "Seconds from a request's first token to its end.",
}
_LENGTHS = {
    "request_prompt_tokens": "Prompt tokens of a finished request.",
    "request_generation_tokens": "Tokens of all samples of a finished request.",
}


class Metrics:
    """Of one served model."""

    def __init__(
        self, load: Callable[[], Load], model: Callable[[], str], num_in_flight: Callable[[], int]
    ) -> None:
        """What the target reported last, what it serves ("" before it is known), and our own."""
        disable_created_metrics()  # of the process: a time beside every count, which nobody reads
        self._registry = registry = CollectorRegistry()
        registry.register(TargetMetrics(load, model))
        self._model = model
        in_flight = "Requests that were accepted and have not ended, in the API process."
        gauge = Gauge(f"{PREFIX}num_requests_in_flight", in_flight, [MODEL], registry=registry)
        self._in_flight, self._num_in_flight = gauge, num_in_flight
        self._finished = Counter(
            f"{PREFIX}request_success",
            "Samples that finished, by why: stop or length. Those that ended with tool calls have "
            "stopped.",
            [MODEL, "finished_reason"],
            registry=registry,
        )
        self._failed = Counter(
            f"{PREFIX}request_failure",
            "Requests that ended otherwise, by gRPC status; CANCELLED: the client has left, "
            "or another prompt of its body failed; RESOURCE_EXHAUSTED: there was no place, the "
            "body or answer was too large, or its reader lagged or took nothing.",
            [MODEL, "code"],
            registry=registry,
        )
        self._histograms = {
            name: Histogram(PREFIX + name, text, [MODEL], registry=registry, buckets=edges)
            for texts, edges in ((_TIMES, _SECONDS), (_LENGTHS, _TOKENS))
            for name, text in texts.items()
        }

    def tokens_came(self, seconds: float) -> None:
        """Some of a sample, so long after those before."""
        self._histograms[_INTER_TOKEN].labels(self._model()).observe(seconds)

    def finished(self, event: Finished) -> None:
        """A request has ended as it should."""
        model, usage, timings = self._model(), event.usage, event.timings
        for sample in event.samples:
            is_call = sample.finish_reason is FinishReason.TOOL_CALLS  # to vLLM it has stopped
            reason = FinishReason.STOP if is_call else sample.finish_reason
            self._finished.labels(model, str(reason)).inc()
        num_later = usage.num_generated_tokens - len(event.samples)  # behind first tokens
        found = {
            "time_to_first_token_seconds": timings.time_to_first_token_s,
            "e2e_request_latency_seconds": timings.total_s,
            "request_queue_time_seconds": timings.queue_s,
            "request_inference_time_seconds": timings.prefill_s + timings.decode_s,
            "request_prefill_time_seconds": timings.prefill_s,
            "request_decode_time_seconds": timings.decode_s,
            "request_prompt_tokens": usage.num_prompt_tokens,
            "request_generation_tokens": usage.num_generated_tokens,
        }
        if num_later > 0:
            per_token_s = timings.decode_s * len(event.samples) / num_later
            found["request_time_per_output_token_seconds"] = per_token_s
        for name, value in found.items():
            self._histograms[name].labels(model).observe(value)

    def failed(self, code: str) -> None:
        """A request has ended with an error, by gRPC status name; CANCELLED: its client left."""
        self._failed.labels(self._model(), code).inc()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        self._in_flight.clear()  # it may have had no name yet
        self._in_flight.labels(self._model()).set(self._num_in_flight())
        return generate_latest(self._registry)
