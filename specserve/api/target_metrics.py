# pyright: strict
"""What the target counts, as Prometheus reads it: from its latest report, whenever somebody asks.

Names are those of vLLM where the meaning is the same. docs/metrics.md has all of them; a test holds
it against this.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from specserve.types import STEP_TIME_EDGES, VERIFY_BUDGET_EDGES, Distribution, Load

PREFIX, VLLM = "specserve:", "vllm:"
MODEL = "model_name"  # a label of all
MODES = ("off", "sync", "async")

Labelled = Sequence[tuple[str, float]]  # values by what a second label says

_SPEC_DECODE: dict[str, tuple[str, Callable[[Load], float]]] = {
    "spec_decode_num_drafts": (
        "Drafted blocks of which at least one token was verified: one for each row and round.",
        lambda load: load.num_drafts,
    ),
    "spec_decode_num_draft_tokens": (
        "Drafted tokens that were verified.",
        lambda load: load.num_drafted_tokens,
    ),
    "spec_decode_num_accepted_tokens": (
        "Drafted tokens that were accepted.",
        lambda load: load.num_accepted_tokens,
    ),
}
_GAUGES: dict[str, tuple[str, Callable[[Load], float]]] = {
    "num_requests_running": (
        "Samples that read their prompt or decode.",
        lambda load: load.num_running,
    ),
    "num_requests_waiting": ("Samples that wait for a place.", lambda load: load.num_waiting),
    "kv_cache_usage_perc": (
        "Share of KV blocks that running samples hold, 0 to 1.",
        lambda load: (load.num_blocks - load.num_free_blocks) / max(1, load.num_blocks),
    ),
    "kv_cache_blocks_cached": (
        "KV blocks of prefixes that are kept for later requests.",
        lambda load: load.num_cached_blocks,
    ),
    "decode_round_seconds": (
        "Seconds of a round without prompts, a moving average over ten or so.",
        lambda load: load.round_s,
    ),
    "draft_processes": (
        "Draft processes of the topology.",
        lambda load: load.num_draft_processes,
    ),
    "drafts_attached": (
        "Draft processes that work with the target now; fewer than there are: degraded.",
        lambda load: load.num_drafts_attached,
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[Load], float]]] = {
    "prompt_tokens": (
        "Prompt tokens that were computed, anew after a preemption, or found in the prefix cache.",
        lambda load: load.num_prompt_tokens + load.num_cached_tokens,
    ),
    "generation_tokens": ("Tokens that were made.", lambda load: load.num_generated_tokens),
    "num_preemptions": (
        "Times that a running sample gave its KV blocks up, to be computed again later.",
        lambda load: load.num_preemptions,
    ),
    "prefix_cache_queries": (
        "Prompt tokens that were looked up in the prefix cache.",
        lambda load: load.num_prompt_tokens + load.num_cached_tokens,
    ),
    "prefix_cache_hits": (
        "Prompt tokens that the prefix cache had.",
        lambda load: load.num_cached_tokens,
    ),
    "rounds": ("Rounds of all kinds.", lambda load: load.num_rounds),
    "decode_rounds": (
        "Rounds without prompts; the counts of seconds and the verify budget are of these.",
        lambda load: load.num_decode_rounds,
    ),
    "forward_seconds": ("Seconds in forwards of decode rounds.", lambda load: load.forward_s),
    "draft_seconds": (
        "Seconds before forwards of decode rounds: drafting, looking up, reporting, waiting.",
        lambda load: load.draft_s,
    ),
    "draft_wait_seconds": (
        "Seconds that rounds waited for blocks of draft processes.",
        lambda load: load.wait_s,
    ),
    "draft_waits": ("Rounds that waited for draft processes.", lambda load: load.num_waits),
    "prepared_blocks": (
        "Blocks that were ready for the rows looked up; over hits and misses: the mean fan-out.",
        lambda load: load.num_prepared_blocks,
    ),
    "draft_batches": (
        "Batches of blocks that arrived from draft processes.",
        lambda load: load.num_draft_batches,
    ),
    "draft_batches_late": (
        "Of these, the batches that no round could use any more.",
        lambda load: load.num_late_draft_batches,
    ),
    "draft_batch_seconds": (
        "Seconds that draft processes took for the batches that arrived.",
        lambda load: load.draft_batch_s,
    ),
    "stand_in_draft_tokens": (
        "Verified tokens that stood in for blocks that no draft process had prepared.",
        lambda load: load.num_stand_in_draft_tokens,
    ),
    "stand_in_accepted_tokens": (
        "Of these, the accepted ones.",
        lambda load: load.num_stand_in_accepted_tokens,
    ),
    "broken_draft_distributions": (
        "Rows whose drafted tokens came with probabilities that are none: a draft is broken.",
        lambda load: load.num_broken_laws,
    ),
}
_POSITIONS = "Drafted tokens that were accepted, by position in the block; the first is 0."


class TargetMetrics(Collector):
    """Of the report that `load` returns, about the model that `model` names."""

    def __init__(self, load: Callable[[], Load], model: Callable[[], str]) -> None:
        self._load, self._model = load, model

    def collect(self) -> Iterator[Metric]:
        load, name = self._load(), self._model()
        for prefix in (PREFIX, VLLM):
            yield from _counters(load, name, _SPEC_DECODE, prefix)
            accepted = f"{prefix}spec_decode_num_accepted_tokens_per_pos"
            by_position = [(str(k), n) for k, n in enumerate(load.num_accepted_per_position)]
            yield _counter(accepted, _POSITIONS, name, "position", by_position)
        for own_name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + own_name, text, labels=[MODEL])
            gauge.add_metric([name], value(load))
            yield gauge
        yield from _counters(load, name, _COUNTERS, PREFIX)
        yield from _by_label(load, name)
        yield from _distributions(load, name)


def _counters(
    load: Load, model: str, table: dict[str, tuple[str, Callable[[Load], float]]], prefix: str
) -> Iterator[Metric]:
    for name, (text, value) in table.items():
        counter = CounterMetricFamily(prefix + name, text, labels=[MODEL])
        counter.add_metric([model], value(load))
        yield counter


def _counter(name: str, text: str, model: str, label: str, values: Labelled) -> Metric:
    counter = CounterMetricFamily(name, text, labels=[MODEL, label])
    for word, value in values:
        counter.add_metric([model, word], value)
    return counter


def _gauge(name: str, text: str, model: str, label: str, values: Labelled) -> Metric:
    gauge = GaugeMetricFamily(PREFIX + name, text, labels=[MODEL, label])
    for word, value in values:
        gauge.add_metric([model, word], value)
    return gauge


def _by_label(load: Load, model: str) -> Iterator[Metric]:
    def counter(name: str, text: str, label: str, values: Labelled) -> Metric:
        return _counter(PREFIX + name, text, model, label, values)

    after_hit, after_miss = load.num_hits_after_hit, load.num_hits - load.num_hits_after_hit
    yield counter(
        "speculation_cache_hits",
        "Rows whose outcome had a prepared block, by whether the round before had a hit or a miss.",
        "after",
        [("hit", after_hit), ("miss", after_miss)],
    )
    missed_after_hit = load.num_lookups_after_hit - after_hit
    missed_after_miss = load.num_lookups - load.num_hits - missed_after_hit
    yield counter(
        "speculation_cache_misses",
        "Rows whose outcome had no prepared block, by the same; first look-ups are after a miss.",
        "after",
        [("hit", missed_after_hit), ("miss", missed_after_miss)],
    )
    yield counter(
        "speculation_cache_fallbacks",
        "The same rows by what was to be done: local_draft, ngram, draft_now or skip.",
        "policy",
        list(load.num_misses.items()),
    )
    yield counter(
        "rounds_by_mode",
        "Rounds by where their drafts came from: off, sync or async.",
        "mode",
        [(mode, load.num_rounds_by_mode.get(mode, 0)) for mode in MODES],
    )
    yield _gauge(
        "speculation_mode",
        "1 for the mode of the latest round, 0 for the others.",
        model,
        "mode",
        [(mode, float(load.speculation_regime == mode)) for mode in MODES],
    )
    yield from _by_draft(load, model)
    yield from _by_position(load, model)


def _by_draft(load: Load, model: str) -> Iterator[Metric]:
    yield _gauge(
        "draft_attached",
        "1 for a draft process that works with the target, 0 for one that is away.",
        model,
        "draft",
        [(str(index), float(draft.is_attached)) for index, draft in enumerate(load.drafts)],
    )
    state = GaugeMetricFamily(
        f"{PREFIX}draft_state",
        "1 for what is so of a draft process: attached, silent, misfit (not made for this target) "
        "or away (ended, or not started yet).",
        labels=[MODEL, "draft", "state"],
    )
    for index, draft in enumerate(load.drafts):
        state.add_metric([model, str(index), draft.state], 1.0)
    yield state
    sent = CounterMetricFamily(
        f"{PREFIX}link_bytes",
        "Bytes of frames to (sent) and from (received) each draft process.",
        labels=[MODEL, "draft", "direction"],
    )
    for index, draft in enumerate(load.drafts):
        sent.add_metric([model, str(index), "sent"], draft.bytes_sent)
        sent.add_metric([model, str(index), "received"], draft.bytes_received)
    yield sent


def _by_position(load: Load, model: str) -> Iterator[Metric]:
    known = [(str(position), each) for position, each in enumerate(load.calibration)]
    for name, text, values in (
        (
            "calibration_judged_tokens",
            "Drafted tokens with a confidence that were reached: all before them were accepted.",
            [(position, each.num_judged) for position, each in known],
        ),
        (
            "calibration_accepted_tokens",
            "Of these, the accepted ones; over the judged ones: the mean acceptance.",
            [(position, each.num_accepted) for position, each in known],
        ),
        (
            "calibration_confidence",
            "Sum of the confidences of these; over the judged ones: the mean confidence.",
            [(position, each.confidence) for position, each in known],
        ),
    ):
        yield _counter(PREFIX + name, text, model, "position", values)
    yield _gauge(
        "calibration_error",
        "Expected calibration error of confidences, 0 to 1, in ten bins since the start.",
        model,
        "position",
        [(position, each.error) for position, each in known],
    )


def _distributions(load: Load, model: str) -> Iterator[Metric]:
    yield _histogram(
        "verify_budget_tokens",
        "Drafted tokens that a decode round verified, all rows together.",
        model,
        VERIFY_BUDGET_EDGES,
        load.verify_budget,
    )
    yield _histogram(
        "step_time_predicted_ratio",
        "Predicted over measured time of a round's forward and verification; 1 is right.",
        model,
        STEP_TIME_EDGES,
        load.step_time_ratio,
    )
    error = GaugeMetricFamily(
        f"{PREFIX}step_time_median_error",
        "Median of |predicted / measured - 1| over the latest 512 rounds; the goal is below 0.1.",
        labels=[MODEL],
    )
    if load.step_time_error is not None:
        error.add_metric([model], load.step_time_error)
    yield error


def _histogram(
    name: str, text: str, model: str, edges: Sequence[float], found: Distribution
) -> Metric:
    histogram = HistogramMetricFamily(PREFIX + name, text, labels=[MODEL])
    counts = found.counts or [0] * (len(edges) + 1)
    les = [*(f"{edge:g}" for edge in edges), "+Inf"]
    buckets = list(zip(les, map(float, accumulate(counts)), strict=True))
    histogram.add_metric([model], buckets, found.total)
    return histogram
