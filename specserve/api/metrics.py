# pyright: strict
"""What Prometheus reads: counts of the target's, and histograms over requests.

Names are those of vLLM where the meaning is the same, below `specserve:`. The four counters of
speculative decoding come below `vllm:` as well, since load generators look for them there. All have
the label `model_name`.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from specserve.api.events import Finished
from specserve.types import Load

_PREFIX = "specserve:"
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_MODEL = "model_name"
_DRAFTING = "spec_decode_"
_REGIMES = ("off", "sync", "async")


class Metrics:
    """Of one served model."""

    def __init__(
        self, load: Callable[[], Load], model: Callable[[], str], num_in_flight: Callable[[], int]
    ) -> None:
        """What the target reported last, what it serves ("" before it is known), and our own."""
        self._registry = CollectorRegistry()
        self._registry.register(_OfTheTarget(load, model, num_in_flight))
        self._model = model
        self._finished = self._counter("request_success", "finished requests", "finished_reason")
        self._failed = self._counter("request_failure", "requests that ended otherwise", "code")
        seconds = {
            "time_to_first_token_seconds": "from arrival to the first token",
            "request_time_per_output_token_seconds": "decoding, by token of a sample",
            "e2e_request_latency_seconds": "from arrival to the end",
            "request_queue_time_seconds": "waiting for a place",
            "request_prefill_time_seconds": "reading the prompt",
            "request_decode_time_seconds": "after that",
        }
        counts = {
            "request_prompt_tokens": "of finished requests",
            "request_generation_tokens": "of finished requests",
        }
        self._histograms = {
            name: Histogram(_PREFIX + name, text, [_MODEL], registry=self._registry, buckets=edges)
            for texts, edges in ((seconds, _SECONDS), (counts, _TOKENS))
            for name, text in texts.items()
        }

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(_PREFIX + name, text, [_MODEL, label], registry=self._registry)

    def finished(self, event: Finished) -> None:
        """A request has ended as it should."""
        model, usage, timings = self._model(), event.usage, event.timings
        for sample in event.samples:
            self._finished.labels(model, str(sample.finish_reason)).inc()
        num_later = usage.num_generated_tokens - len(event.samples)  # behind first tokens
        found = {
            "time_to_first_token_seconds": timings.time_to_first_token_s,
            "e2e_request_latency_seconds": timings.total_s,
            "request_queue_time_seconds": timings.queue_s,
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
        return generate_latest(self._registry)


class _OfTheTarget(Collector):
    """Read off the latest report whenever somebody asks."""

    def __init__(
        self, load: Callable[[], Load], model: Callable[[], str], num_in_flight: Callable[[], int]
    ) -> None:
        self._load, self._model, self._num_in_flight = load, model, num_in_flight

    def collect(self) -> Iterator[Metric]:
        load, labels = self._load(), [self._model()]
        for name, text, value in _gauges(load, self._num_in_flight()):
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=[_MODEL])
            gauge.add_metric(labels, value)
            yield gauge
        for name, text, value in _counters(load):
            prefixes = (_PREFIX, "vllm:") if name.startswith(_DRAFTING) else (_PREFIX,)
            for prefix in prefixes:
                counter = CounterMetricFamily(prefix + name, text, labels=[_MODEL])
                counter.add_metric(labels, value)
                yield counter
        for prefix in (_PREFIX, "vllm:"):
            name = f"{prefix}{_DRAFTING}num_accepted_tokens_per_pos"
            text = "drafted tokens that stood, by position"
            positions = CounterMetricFamily(name, text, labels=[_MODEL, "position"])
            for position, count in enumerate(load.num_accepted_per_position):
                positions.add_metric([*labels, str(position)], count)
            yield positions
        mode = GaugeMetricFamily(
            f"{_PREFIX}speculation_mode", "1 for what the last round did", labels=[_MODEL, "mode"]
        )
        for regime in _REGIMES:
            mode.add_metric([*labels, regime], float(load.speculation_regime == regime))
        yield mode
        sent = CounterMetricFamily(
            f"{_PREFIX}link_bytes", "to and from draft processes", labels=[_MODEL, "direction"]
        )
        sent.add_metric([*labels, "sent"], load.bytes_sent)
        sent.add_metric([*labels, "received"], load.bytes_received)
        yield sent


def _gauges(load: Load, num_in_flight: int) -> list[tuple[str, str, float]]:
    used = load.num_blocks - load.num_free_blocks
    return [
        ("num_requests_running", "samples that decode or read", load.num_running),
        ("num_requests_waiting", "samples that wait for a place", load.num_waiting),
        ("num_requests_in_flight", "accepted and not ended", num_in_flight),
        ("kv_cache_usage_perc", "share of blocks in use, 0 to 1", used / max(1, load.num_blocks)),
        ("kv_cache_blocks_cached", "blocks of prefixes that are kept", load.num_cached_blocks),
        ("decode_round_seconds", "a round as of late", load.round_s),
        ("draft_processes", "of the topology", load.num_draft_processes),
        ("drafts_attached", "draft processes at work", load.num_drafts_attached),
    ]


def _counters(load: Load) -> list[tuple[str, str, float]]:
    return [
        ("prompt_tokens", "read", load.num_prompt_tokens),
        ("generation_tokens", "emitted", load.num_generated_tokens),
        ("num_preemptions", "samples that had to give way", load.num_preemptions),
        ("prefix_cache_queries", "prompt tokens looked up", load.num_prompt_tokens),
        ("prefix_cache_hits", "prompt tokens found", load.num_cached_tokens),
        (f"{_DRAFTING}num_drafts", "blocks verified", load.num_drafts),
        (f"{_DRAFTING}num_draft_tokens", "drafted tokens verified", load.num_drafted_tokens),
        (f"{_DRAFTING}num_accepted_tokens", "drafted tokens that stood", load.num_accepted_tokens),
        ("rounds", "of all kinds", load.num_rounds),
        ("decode_rounds", "without prompts; the seconds are theirs", load.num_decode_rounds),
        ("forward_seconds", "of decode rounds", load.forward_s),
        ("draft_seconds", "before their forwards: drafting, looking up", load.draft_s),
        ("draft_wait_seconds", "of that, waiting for draft processes", load.wait_s),
        ("speculation_lookups", "rows whose block was looked up", load.num_lookups),
        ("speculation_hits", "rows that had one", load.num_hits),
        ("draft_batches", "that arrived", load.num_draft_batches),
        ("draft_batches_late", "that no round could use any more", load.num_late_draft_batches),
        ("draft_batch_seconds", "that draft processes took", load.draft_batch_s),
        ("stand_in_draft_tokens", "in place of missing blocks", load.num_stand_in_draft_tokens),
        ("stand_in_accepted_tokens", "of those, that stood", load.num_stand_in_accepted_tokens),
        ("broken_draft_distributions", "rows whose drafts had none", load.num_broken_laws),
    ]
