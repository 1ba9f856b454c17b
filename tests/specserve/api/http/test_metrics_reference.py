"""docs/metrics.md says what /metrics says, name by name, and vLLM's names are typed as vLLM's."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specserve.types import (
    STEP_TIME_EDGES,
    VERIFY_BUDGET_EDGES,
    Distribution,
    DraftReport,
    Load,
    PositionCalibration,
)
from target_node.planning.calibration_meter import NUM_BINS
from target_node.planning.step_table import _NUM_ERRORS
from tests.specserve.api.http.conftest import send

REFERENCE = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
# Types of vLLM 0.33.0, by the names that it gives its client library (vllm/v1/metrics/loggers.py,
# vllm/v1/spec_decode/metrics.py).
VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "request_success": "counter",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
}
FULL = Load(
    num_accepted_per_position=[1],
    num_misses={"skip": 1},
    drafts=[DraftReport(is_attached=True, bytes_sent=5, bytes_received=6)],
    verify_budget=Distribution([1] * (len(VERIFY_BUDGET_EDGES) + 1), 7.0),
    step_time_ratio=Distribution([1] * (len(STEP_TIME_EDGES) + 1), 7.0),
    step_time_error=0.05,
    calibration=[PositionCalibration(2, 1, 1.5, 0.25)],
)


class Told(NamedTuple):
    """Of one metric, as it is typed into a query."""

    kind: str
    labels: tuple[str, ...]
    text: str


def told_by_the_page() -> dict[str, Told]:
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|(.*?)\| (.+) \|$", REFERENCE, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names))
    return {
        name: Told(kind, tuple(re.findall(r"`(\w+)`", labels)), text.replace("\\|", "|"))
        for name, kind, labels, text in rows
    }


@pytest.fixture
def told_by_the_service(make_rig) -> dict[str, Told]:
    rig = make_rig(num_drafts=1)
    rig.target.load = FULL
    rig.until(lambda: rig.service.hub.load.step_time_error is not None)
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "max_tokens": 5})
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "temperature": 1e9})
    text = send(rig.url, "GET", "/metrics").body.decode()
    found: dict[str, Told] = {}
    for family in text_string_to_metric_families(text):
        assert family.samples, family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        assert "model_name" in labels
        own = tuple(label for label in labels if label not in ("model_name", "le"))
        ending = "_total" if family.type == "counter" else ""
        found[family.name + ending] = Told(family.type, own, family.documentation)
    return found


def test_the_page_has_every_metric_and_no_other(told_by_the_service):
    page = told_by_the_page()
    assert sorted(page) == sorted(told_by_the_service)
    assert {name: page[name] for name in page} == told_by_the_service


def test_every_text_says_what_is_counted(told_by_the_service):
    for name, told in told_by_the_service.items():
        assert re.fullmatch(r"[A-Z1].*\.", told.text), name
        units = {"seconds": "Seconds", "bytes": "Bytes", "tokens": "oken"}
        for unit, word in units.items():
            if re.search(rf"_{unit}(_total)?$", name) and "calibration" not in name:
                assert word in told.text or "Of these" in told.text, name


def test_vllms_names_are_typed_as_vllms(told_by_the_service):
    for name, kind in VLLM.items():
        ending = "_total" if kind == "counter" else ""
        assert told_by_the_service[f"specserve:{name}{ending}"].kind == kind, name
    below_vllm = {name for name in told_by_the_service if name.startswith("vllm:")}
    drafting = [name for name in VLLM if name.startswith("spec_decode_")]
    assert below_vllm == {f"vllm:{name}_total" for name in drafting}
    assert told_by_the_service["specserve:request_success_total"].labels == ("finished_reason",)
    position = told_by_the_service["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert position.labels == ("position",)


def test_the_page_says_which_names_are_vllms():
    """A section of its own, with nothing else in it."""
    section = REFERENCE.partition("## As in vLLM")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `specserve:(\w+)` \|", section, re.MULTILINE)
    assert {name.removesuffix("_total") for name in names} == set(VLLM)
    assert "`specserve:" in REFERENCE.partition("## As in vLLM")[2].partition("\n## ")[2]


def test_queries_ask_for_what_there_is():
    section = REFERENCE.partition("## Questions and queries")[2].partition("\n## ")[0]
    known = set(told_by_the_page())
    asked = set(re.findall(r"specserve:\w+", section))
    assert len(asked) > 10
    assert {re.sub(r"_(sum|count|bucket)$", "", name) for name in asked} <= known


def test_what_texts_say_of_numbers_is_so(told_by_the_service):
    assert NUM_BINS == 10
    assert "in ten bins" in told_by_the_service["specserve:calibration_error"].text
    text = told_by_the_service["specserve:step_time_median_error"].text
    assert f"the latest {_NUM_ERRORS} rounds" in text
