# pyright: strict
"""What figures of a running service are called where people read them, and what they mean.

The gRPC API keeps the names of its first version; a few of them mean nothing to who does not know
how the service was made.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One that is shown."""

    name: str
    meaning: str


# By section of `specserve info`, then by the name in the gRPC API.
FIGURES = {
    "service": {
        "oversubscribed": Figure("oversubscribed", "more processes than cores or devices"),
        "uptime_s": Figure("api_uptime_s", "seconds since the API process has started"),
    },
    "load": {
        "num_in_flight": Figure("num_in_flight", "requests that have a place, waiting or running"),
        "num_running": Figure("num_running", "samples that are being decoded or prefilled"),
        "num_waiting": Figure("num_waiting", "samples that wait for room"),
        "num_free_blocks": Figure("num_free_blocks", "KV blocks that hold nothing needed"),
        "num_cached_blocks": Figure("num_cached_blocks", "KV blocks that are kept as prefixes"),
        "num_preemptions": Figure("num_preemptions", "samples that gave up their blocks"),
        "round_s": Figure("round_s", "moving average of a round without prefill, seconds"),
        "draining": Figure("draining", "new requests are refused"),
        "speculation_regime": Figure("mode_now", "what the last round ran: off, sync or async"),
        "report_age_s": Figure("report_age_s", "seconds since the target told these figures"),
        "uptime_s": Figure("target_uptime_s", "seconds since the target has started, as it told"),
    },
    "speculation": {
        "mode": Figure("mode", "what may run; auto decides by what it measures"),
        "gamma": Figure("gamma", "tokens that are drafted for a row and round at most"),
        "verification": Figure("verification", "of requests without a seed (docs/glossary.md)"),
        "fan_out": Figure("fan_out", "blocks prepared for a row and round at most"),
        "wave": Figure("draft_batch", "blocks that a draft process sends together at most"),
        "fan_out_rule": Figure("fan_out_rule", "how blocks are shared out among outcomes"),
        "miss_policy": Figure("miss_policy", "what a row without a prepared block does"),
        "acceptance_rate": Figure("acceptance_rate", "accepted of drafted tokens"),
        "hit_rate": Figure("hit_rate", "rows that found a prepared block"),
        "num_drafts": Figure("num_drafts", "rows that verified a drafted token, of all rounds"),
        "num_lookups": Figure("num_lookups", "rows that looked for a prepared block"),
        "num_hits": Figure("num_hits", "of these, those that found one"),
        "num_waves": Figure("num_draft_batches", "pushes of draft processes that arrived"),
        "num_late_waves": Figure("num_late_draft_batches", "of these, those of no more use"),
        "wave_s": Figure("draft_batch_s", "seconds that draft processes took for them"),
        "num_broken_laws": Figure(
            "num_broken_draft_probs",
            "rows whose draft probabilities were none, all refused: a draft process is broken",
        ),
        "num_stand_in_draft_tokens": Figure(
            "num_stand_in_draft_tokens", "drafted where no block was prepared"
        ),
        "num_stand_in_accepted_tokens": Figure(
            "num_stand_in_accepted_tokens", "of these, the accepted ones"
        ),
        "wait_s": Figure("wait_s", "seconds that rounds waited for drafts, part of draft_s"),
        "draft_s": Figure("draft_s", "seconds before forwards: drafting, looking up, reporting"),
        "forward_s": Figure("forward_s", "seconds of forwards, of rounds without prefill"),
        "verify_budget_tokens": Figure("verify_budget_tokens", "drafted tokens that were verified"),
        "step_time_error": Figure("step_time_error", "median error of predicted round times"),
    },
}
# Of the target's own report, which /server_info has whole.
_OF_REPORT = {**FIGURES["speculation"], **FIGURES["load"]}


def renamed(report: Mapping[str, Any]) -> dict[str, Any]:
    """The target's report as people read it."""
    return {
        _OF_REPORT[key].name if key in _OF_REPORT else key: value for key, value in report.items()
    }
