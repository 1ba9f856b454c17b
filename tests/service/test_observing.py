"""What a real service tells while it runs: metrics, lines of figures, top; spans at its end."""

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specserve.api.call import SpecOptions
from specserve.client import Client
from tests.service.chaos import end
from tests.service.launched import Launched
from tests.service.test_openai import url_of
from tests.specserve.api.otlp_collector import Collector, collecting
from tests.specserve.api.test_stats_log import VLLM, VLLM_DRAFTING

PROMPT = "def main():\n    "
INTERVAL_S = 0.5


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def service(collector: Collector) -> Iterator[Launched]:
    launched = Launched(
        "--speculation", "async", "--topology", "1+1", "--oversubscribe",
        "--set", "speculation.min_survival=0", "--otlp-endpoint", collector.url,
        "--log-interval-s", str(INTERVAL_S),
    )  # fmt: skip
    try:
        launched.address()
        with Client(launched.address()) as client:
            while client.server_info().state != "ready":  # its draft process comes when it can
                time.sleep(0.05)
        yield launched
    finally:
        end(launched)


def metrics(service: Launched) -> dict[str, float]:
    """Sums over labels, by name."""
    with urllib.request.urlopen(url_of(service).replace("/v1", "/metrics")) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("specserve:")
            found[name] = found.get(name, 0.0) + sample.value
    return found


@pytest.mark.slow
def test_counts_are_those_of_the_requests(service: Launched):
    before = metrics(service)
    with Client(service.address()) as client:
        options = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
        answers = [
            client.generate(PROMPT, spec=SpecOptions(return_stats=True), **options)
            for _ in range(3)
        ]
    after = metrics(service)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    records = [answer.spec for answer in answers]
    assert grown["generation_tokens_total"] == 450
    assert grown["request_success_total"] == 3
    assert grown["spec_decode_num_drafts_total"] == sum(each.num_drafts for each in records) > 0
    num_accepted = sum(each.num_accepted_tokens for each in records)
    assert grown["spec_decode_num_accepted_tokens_total"] == num_accepted > 0
    hits, misses = (grown[f"speculation_cache_{name}_total"] for name in ("hits", "misses"))
    assert hits + misses > 0
    assert grown["speculation_cache_fallbacks_total"] == misses
    assert grown["rounds_by_mode_total"] == grown["rounds_total"]
    assert grown["verify_budget_tokens_count"] == grown["decode_rounds_total"]
    assert grown["inter_token_latency_seconds_count"] >= 3
    assert grown["calibration_judged_tokens_total"] >= grown["calibration_accepted_tokens_total"]
    assert grown["link_bytes_total"] > 0
    assert after["draft_attached"] == after["drafts_attached"] == 1
    assert 0 < after["step_time_median_error"] < 10


@pytest.mark.slow
def test_lines_of_figures_come_with_requests_and_end_with_them(service: Launched):
    time.sleep(3 * INTERVAL_S)
    count = len(lines_of(service))
    time.sleep(3 * INTERVAL_S)
    assert len(lines_of(service)) == count  # nobody asks for anything
    with Client(service.address()) as client:
        client.generate(PROMPT, max_tokens=150, temperature=0, ignore_eos=True)
    time.sleep(2 * INTERVAL_S)
    news = lines_of(service)[count:]
    assert 1 <= len(news) <= 4
    assert all(VLLM.search(line) for line in news)
    found = [VLLM_DRAFTING.search(line) for line in news]
    assert any(match and float(match["length"]) > 1 for match in found)
    assert ", Mode: async, Drafts attached: 1 of 1" in news[-1]


def lines_of(service: Launched) -> list[str]:
    return [line for line in list(service.lines) if re.search(r" I api: Avg prompt", line)]


@pytest.mark.slow
def test_top_shows_it(service: Launched):
    words = [sys.executable, "-m", "specserve", "top", "--connect", service.address()]
    with Client(service.address()) as client:
        stream = client.stream(PROMPT, max_tokens=2000, temperature=0, ignore_eos=True)
        next(iter(stream))
        result = subprocess.run(
            [*words, "--interval", "0.5", "--once"], capture_output=True, text=True, check=False
        )
        stream.cancel()
    assert (result.returncode, result.stderr) == (0, "")
    for name in ("tokens/s out", "acceptance length", "mean confidence", "draft 0   attached"):
        assert name in result.stdout, result.stdout


@pytest.mark.slow
def test_what_was_not_sent_yet_is_sent_when_it_stops(service: Launched, collector: Collector):
    with Client(service.address()) as client:
        client.generate(PROMPT, request_id="the last", max_tokens=3)
    service.process.send_signal(signal.SIGTERM)
    assert service.exit_code() == 0
    last = collector.spans[-1].attributes
    assert last["gen_ai.request.id"] == "the last"
    assert last["gen_ai.usage.completion_tokens"] == 3
