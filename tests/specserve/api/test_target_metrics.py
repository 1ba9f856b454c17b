"""Every number of a target's report is told once, under the name that says what it is."""

import pytest

from specserve.api.target_metrics import TargetMetrics
from specserve.types import (
    STEP_TIME_EDGES,
    VERIFY_BUDGET_EDGES,
    Distribution,
    DraftReport,
    Load,
    PositionCalibration,
)

# No number is there twice, nor a sum or difference that is told of another pair.
LOAD = Load(
    num_running=2, num_waiting=3, num_free_blocks=4, num_blocks=16, num_cached_blocks=5,
    num_preemptions=6, num_rounds=7, num_prompt_tokens=1000, num_cached_tokens=400,
    num_generated_tokens=8, round_s=0.125, uptime_s=9.0, num_drafts=10, num_drafted_tokens=11,
    num_accepted_tokens=12, num_accepted_per_position=[13, 14], num_draft_processes=15,
    num_drafts_attached=17, speculation_regime="sync", num_lookups=5000, num_hits=2000,
    num_lookups_after_hit=700, num_hits_after_hit=300, num_draft_batches=18,
    num_late_draft_batches=19, num_broken_laws=20, draft_batch_s=21.5, wait_s=22.5,
    num_decode_rounds=23, draft_s=24.5, forward_s=25.5, num_stand_in_draft_tokens=26,
    num_stand_in_accepted_tokens=27, num_rounds_by_mode={"sync": 28, "async": 29},
    num_prepared_blocks=30, num_misses={"skip": 31, "ngram": 32}, num_waits=33,
    drafts=[
        DraftReport(is_attached=False, bytes_sent=34, bytes_received=35),
        DraftReport(is_attached=True, bytes_sent=36, bytes_received=37, state="attached"),
    ],
    verify_budget=Distribution([1, 2, *[0] * (len(VERIFY_BUDGET_EDGES) - 2), 4], 38.0),
    step_time_ratio=Distribution([0, 3, *[0] * (len(STEP_TIME_EDGES) - 2), 5], 39.0),
    step_time_error=0.0625,
    calibration=[PositionCalibration(40, 41, 42.5, 0.25), PositionCalibration(43, 44, 45.5, 0.5)],
)  # fmt: skip
EXPECTED = {
    "num_requests_running": 2, "num_requests_waiting": 3, "kv_cache_usage_perc": 0.75,
    "kv_cache_blocks_cached": 5, "num_preemptions_total": 6, "rounds_total": 7,
    "prompt_tokens_total": 1400, "prefix_cache_queries_total": 1400,
    "prefix_cache_hits_total": 400, "generation_tokens_total": 8, "decode_round_seconds": 0.125,
    "spec_decode_num_drafts_total": 10, "spec_decode_num_draft_tokens_total": 11,
    "spec_decode_num_accepted_tokens_total": 12,
    "spec_decode_num_accepted_tokens_per_pos_total position=0": 13,
    "spec_decode_num_accepted_tokens_per_pos_total position=1": 14,
    "draft_processes": 15, "drafts_attached": 17,
    "speculation_mode mode=off": 0, "speculation_mode mode=sync": 1,
    "speculation_mode mode=async": 0,
    "speculation_cache_hits_total after=hit": 300,
    "speculation_cache_hits_total after=miss": 1700,
    "speculation_cache_misses_total after=hit": 400,
    "speculation_cache_misses_total after=miss": 2600,
    "draft_batches_total": 18, "draft_batches_late_total": 19,
    "broken_draft_distributions_total": 20, "draft_batch_seconds_total": 21.5,
    "draft_wait_seconds_total": 22.5, "decode_rounds_total": 23, "draft_seconds_total": 24.5,
    "forward_seconds_total": 25.5, "stand_in_draft_tokens_total": 26,
    "stand_in_accepted_tokens_total": 27,
    "rounds_by_mode_total mode=off": 0, "rounds_by_mode_total mode=sync": 28,
    "rounds_by_mode_total mode=async": 29, "prepared_blocks_total": 30,
    "speculation_cache_fallbacks_total policy=skip": 31,
    "speculation_cache_fallbacks_total policy=ngram": 32, "draft_waits_total": 33,
    "draft_attached draft=0": 0, "draft_attached draft=1": 1,
    "draft_state draft=0 state=away": 1, "draft_state draft=1 state=attached": 1,
    "link_bytes_total direction=sent draft=0": 34,
    "link_bytes_total direction=received draft=0": 35,
    "link_bytes_total direction=sent draft=1": 36,
    "link_bytes_total direction=received draft=1": 37,
    "verify_budget_tokens_sum": 38, "verify_budget_tokens_count": 7,
    "step_time_predicted_ratio_sum": 39, "step_time_predicted_ratio_count": 8,
    "step_time_median_error": 0.0625,
    "calibration_judged_tokens_total position=0": 40,
    "calibration_accepted_tokens_total position=0": 41,
    "calibration_confidence_total position=0": 42.5, "calibration_error position=0": 0.25,
    "calibration_judged_tokens_total position=1": 43,
    "calibration_accepted_tokens_total position=1": 44,
    "calibration_confidence_total position=1": 45.5, "calibration_error position=1": 0.5,
}  # fmt: skip


def told(load: Load) -> dict[str, float]:
    """Values by name and labels, buckets among them; those below `vllm:` are checked here."""
    found: dict[str, float] = {}
    vllms: dict[str, float] = {}
    for metric in TargetMetrics(lambda: load, lambda: "m").collect():
        for sample in metric.samples:
            assert sample.labels["model_name"] == "m"
            labels = [f"{n}={v}" for n, v in sorted(sample.labels.items()) if n != "model_name"]
            prefix, _, name = " ".join([sample.name, *labels]).partition(":")
            own = found if prefix == "specserve" else vllms
            assert name not in own
            own[name] = sample.value
    assert vllms == {name: found[name] for name in vllms}
    assert all(name.startswith("spec_decode_") for name in vllms)
    return found


def test_every_number_is_told_under_its_name():
    found = told(LOAD)
    assert {name: value for name, value in found.items() if "_bucket" not in name} == EXPECTED


@pytest.mark.parametrize(
    ("name", "edges", "first", "last"),
    [
        ("verify_budget_tokens", VERIFY_BUDGET_EDGES, 1, 7),
        ("step_time_predicted_ratio", STEP_TIME_EDGES, 0, 8),
    ],
)
def test_buckets_count_all_up_to_their_edge(name, edges, first, last):
    found = told(LOAD)
    buckets = [found[f"{name}_bucket le={edge:g}"] for edge in edges]
    assert buckets == [first] + [3] * (len(edges) - 1)
    assert found[f"{name}_bucket le=+Inf"] == last


def test_a_target_that_has_not_reported_yet_has_done_nothing():
    found = told(Load())
    assert "step_time_median_error" not in found
    assert found.pop("speculation_mode mode=off") == 1
    assert set(found.values()) == {0}
