"""What Prometheus is told: by its own parser, against what was done."""

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.metrics import Metrics
from specserve.types import Load, RequestStats
from tests.specserve.api.http.conftest import opened, send


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels, but for that of the model."""
    answer = send(url, "GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            own = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name, tuple(sorted(own.items()))] = sample.value
    return found


def test_the_targets_counts_have_vllms_names(make_rig):
    rig = make_rig()
    rig.target.load = Load(
        num_waiting=3,
        num_blocks=10,
        num_free_blocks=4,
        num_prompt_tokens=100,
        num_cached_tokens=40,
        num_generated_tokens=50,
        num_drafts=10,
        num_drafted_tokens=30,
        num_accepted_tokens=11,
        num_accepted_per_position=[7, 4, 0],
        speculation_regime="async",
    )
    rig.until(lambda: rig.service.hub.load.num_drafts == 10)
    found = samples(rig.url)
    for prefix in ("specserve:", "vllm:"):
        assert found[f"{prefix}spec_decode_num_drafts_total", ()] == 10
        assert found[f"{prefix}spec_decode_num_draft_tokens_total", ()] == 30
        assert found[f"{prefix}spec_decode_num_accepted_tokens_total", ()] == 11
        name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
        assert [found[name, (("position", str(n)),)] for n in range(3)] == [7, 4, 0]
    assert found["specserve:num_requests_waiting", ()] == 3
    assert found["specserve:kv_cache_usage_perc", ()] == pytest.approx(0.6)
    assert found["specserve:prefix_cache_hits_total", ()] == 40
    assert found["specserve:prompt_tokens_total", ()] == 140
    assert found["specserve:prefix_cache_queries_total", ()] == 140
    assert found["specserve:speculation_mode", (("mode", "async"),)] == 1
    assert found["specserve:speculation_mode", (("mode", "off"),)] == 0


def test_every_request_ends_in_one_count(make_rig):
    rig = make_rig()
    for _ in range(3):
        send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "max_tokens": 5})
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "n": 2, "max_tokens": 100})
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "temperature": 1e9})
    found = samples(rig.url)
    assert found["specserve:request_success_total", (("finished_reason", "length"),)] == 3
    assert found["specserve:request_success_total", (("finished_reason", "stop"),)] == 2
    assert found["specserve:request_failure_total", (("code", "INVALID_ARGUMENT"),)] == 1
    for name in ("time_to_first_token", "request_time_per_output_token", "e2e_request_latency"):
        assert found[f"specserve:{name}_seconds_count", ()] == 4
    assert found["specserve:e2e_request_latency_seconds_sum", ()] > 0
    assert found["specserve:request_generation_tokens_sum", ()] == 15 + 2 * len(rig.script_ids)


def test_what_gets_no_session_is_counted_by_its_status(make_rig):
    """Over both APIs: what is no request, asks for too much, or for what is not served."""
    rig = make_rig(max_message_bytes=2000)
    many = {"prompt": ["a"] * 256, "n": 64, "max_tokens": 500, "logprobs": 20}
    for path, body in (
        ("/v1/completions", b"no JSON"),
        ("/v1/completions", {"prompt": "fox", "nobody": 1}),
        ("/v1/completions", many),
        ("/v1/completions", {"prompt": "fox", "stream": True, "prompt_logprobs": 1}),
        ("/v1/chat/completions", {"messages": []}),
    ):
        assert send(rig.url, "POST", path, body).status == 400
    json_mode = {"messages": [{"role": "user", "content": "x"}]}
    json_mode["response_format"] = {"type": "xml"}
    assert send(rig.url, "POST", "/v1/chat/completions", json_mode).status == 400
    assert send(rig.url, "POST", "/v1/completions", b" " * 3000).status == 413
    gzip = {"Content-Encoding": "gzip"}
    assert send(rig.url, "POST", "/v1/completions", b"", headers=gzip).status == 415
    with grpc.insecure_channel(rig.address) as channel:
        for content in (pb.GenerateRequest().SerializeToString(), bytes([255, 255])):
            call = channel.unary_unary("/specserve.v1.Generation/Generate")
            with pytest.raises(grpc.RpcError):
                call(content, timeout=20)
    found = samples(rig.url)
    failures = {
        dict(labels)["code"]: count
        for (name, labels), count in found.items()
        if name == "specserve:request_failure_total"
    }
    assert failures == {
        "INVALID_ARGUMENT": 8, "FAILED_PRECONDITION": 1, "RESOURCE_EXHAUSTED": 1,
    }  # fmt: skip


def test_a_defect_before_a_session_is_counted_once(make_rig):
    rig = make_rig()
    rig.tokenizer.decode = None  # which an echo of token ids calls
    body = {"prompt": [5], "echo": True}
    assert send(rig.url, "POST", "/v1/completions", body).status == 500
    found = samples(rig.url)
    assert found["specserve:request_failure_total", (("code", "INTERNAL"),)] == 1


def test_a_defect_is_not_counted_as_a_client_that_left(make_rig):
    rig = make_rig()
    rig.tokenizer.with_bytes = None  # which only requests for log probabilities call
    answer = send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "logprobs": 1})
    assert answer.status == 500
    found = samples(rig.url)
    assert found["specserve:request_failure_total", (("code", "INTERNAL"),)] == 1
    assert ("specserve:request_failure_total", (("code", "CANCELLED"),)) not in found


def test_times_of_a_request_are_those_that_the_target_says(make_rig):
    rig = make_rig()
    rig.target.stats = RequestStats(num_prompt_tokens=7, queue_s=0.25, prefill_s=0.5, decode_s=3.0)
    body = {"prompt": "fox", "n": 2, "max_tokens": 5}
    send(rig.url, "POST", "/v1/completions", body)
    found = samples(rig.url)
    sums = {
        "request_queue_time_seconds": 0.25,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 3.0,
        "request_inference_time_seconds": 3.5,
        "request_time_per_output_token_seconds": 0.75,  # each of two samples has four more
        "request_prompt_tokens": 7,
        "request_generation_tokens": 10,
    }
    for name, value in sums.items():
        assert found[f"specserve:{name}_sum", ()] == pytest.approx(value), name
        assert found[f"specserve:{name}_count", ()] == 1
        assert found[f"specserve:{name}_bucket", (("le", "+Inf"),)] == 1


def test_between_tokens_is_the_time_of_a_sample_and_not_of_a_request(make_rig):
    rig = make_rig()
    rig.target.round_s = 0.05
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "n": 2, "max_tokens": 5})
    found = samples(rig.url)
    assert found["specserve:inter_token_latency_seconds_count", ()] == 8
    mean_s = found["specserve:inter_token_latency_seconds_sum", ()] / 8
    assert 0.045 < mean_s < 0.5
    total_s = found["specserve:e2e_request_latency_seconds_sum", ()]
    assert found["specserve:inter_token_latency_seconds_sum", ()] <= 2 * total_s


def test_a_request_of_one_token_has_no_time_between_tokens(make_rig):
    rig = make_rig()
    send(rig.url, "POST", "/v1/completions", {"prompt": "fox", "max_tokens": 1})
    found = samples(rig.url)
    assert found["specserve:e2e_request_latency_seconds_count", ()] == 1
    for name in ("request_time_per_output_token", "inter_token_latency"):
        assert found.get((f"specserve:{name}_seconds_count", ()), 0) == 0


def test_a_name_that_was_not_known_yet_leaves_nothing_behind():
    names = iter(["", "known", "known"])
    metrics = Metrics(Load, lambda: next(names, "known"), lambda: 3)
    metrics.text()
    found = metrics.text().decode().splitlines()
    assert [line for line in found if line.startswith("specserve:num_requests_in_flight")] == [
        'specserve:num_requests_in_flight{model_name="known"} 3.0'
    ]


def test_who_leaves_is_counted_as_such(make_rig):
    rig = make_rig()
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.01
    with opened(rig, {"prompt": "fox", "max_tokens": 400, "stream": True}):
        rig.until(lambda: rig.target.num_live == 1)
    rig.until(lambda: rig.service.hub.num_in_flight == 0)
    found = samples(rig.url)
    assert found["specserve:request_failure_total", (("code", "CANCELLED"),)] == 1
