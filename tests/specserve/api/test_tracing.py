"""Spans as a real collector gets them, from both front ends."""

import socket
import subprocess
import sys
import time

import grpc
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.tracing import traces_url
from specserve.errors import InvalidField
from specserve.types import RequestStats
from tests.specserve.api.http.conftest import opened, send
from tests.specserve.api.otlp_collector import Collector, collecting

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=b"}
SERVER = 2  # a kind of span
BODY = {"prompt": "fox", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 7}


@pytest.fixture
def collector():
    with collecting() as collector:
        yield collector


@pytest.fixture
def traced(make_rig, collector: Collector):
    return make_rig(otlp_endpoint=collector.url)


def ended(rig, collector: Collector, count: int):
    """The spans, which a service that stops sends at once."""
    rig.service.tracer._provider.force_flush()
    return collector.wait_for(count)


def test_a_request_is_one_span_below_its_callers(traced, collector):
    before_s = time.time()
    answer = send(traced.url, "POST", "/v1/completions", BODY, PARENT)
    (span,) = ended(traced, collector, 1)
    assert (span.name, span.kind, span.error) == ("llm_request", SERVER, "")
    assert (span.trace_id, span.parent_id) == (TRACE_ID, PARENT_ID)
    assert before_s - 0.01 <= span.start_s <= span.start_s + span.seconds <= time.time() + 0.01
    found = span.attributes
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "scripted",
        "gen_ai.response.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.n": 1,
        "gen_ai.request.seed": "7",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.prompt_tokens": answer.body["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_inference": 0.5,
        "specserve.spec_decode.num_drafts": 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert 0 < found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    assert found["gen_ai.latency.e2e"] == pytest.approx(span.seconds, abs=1e-3)
    assert found["gen_ai.request.id"]
    assert span.resource["service.name"] == "specserve"
    assert collector.paths == ["/v1/traces"]


def test_times_and_drafts_are_those_that_the_target_says(traced, collector):
    traced.target.stats = RequestStats(
        num_prompt_tokens=7, queue_s=0.25, prefill_s=0.5, decode_s=2.0, num_drafts=3,
        num_drafted_tokens=9, num_accepted_tokens=4, num_accepted_per_position=[3, 1],
    )  # fmt: skip
    send(traced.url, "POST", "/v1/completions", BODY | {"n": 2}, PARENT)
    (span,) = ended(traced, collector, 1)
    expected = {
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.completion_tokens": 10,
        "gen_ai.usage.num_sequences": 2,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 2.0,
        "gen_ai.latency.time_in_model_inference": 2.5,
        "specserve.spec_decode.num_drafts": 3,
        "specserve.spec_decode.num_draft_tokens": 9,
        "specserve.spec_decode.num_accepted_tokens": 4,
    }
    assert {name: span.attributes[name] for name in expected} == expected


def test_metadata_of_grpc_says_who_calls(traced, collector):
    with grpc.insecure_channel(traced.address) as channel:
        request = pb.GenerateRequest(request_id="mine", text="fox")
        stubs.GenerationStub(channel).Generate(request, metadata=tuple(PARENT.items()))
    (span,) = ended(traced, collector, 1)
    assert (span.trace_id, span.parent_id) == (TRACE_ID, PARENT_ID)
    assert span.attributes["gen_ai.request.id"] == "mine"


def test_a_chat_is_told_from_a_completion_and_no_text_leaves(traced, collector):
    messages = [{"role": "user", "content": "whisper it"}]
    send(traced.url, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 500})
    (span,) = ended(traced, collector, 1)
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    for text in (b"whisper", b"quick", b"fox"):
        assert text not in collector.content


@pytest.mark.parametrize("named", [{}, {"traceparent": "00-nonsense"}, {"traceparent": "\xff"}])
def test_who_names_no_span_gets_one_of_its_own(traced, collector, named):
    send(traced.url, "POST", "/v1/completions", BODY, named)
    (span,) = ended(traced, collector, 1)
    assert span.parent_id == ""
    assert span.trace_id not in ("", TRACE_ID)


def test_who_is_not_sampled_has_no_span(traced, collector):
    send(
        traced.url,
        "POST",
        "/v1/completions",
        BODY,
        {"traceparent": PARENT["traceparent"][:-2] + "00"},
    )
    send(traced.url, "POST", "/v1/completions", BODY, PARENT)
    assert len(ended(traced, collector, 1)) == 1


def test_several_prompts_are_several_spans_below_one(traced, collector):
    send(traced.url, "POST", "/v1/completions", BODY | {"prompt": ["fox", "dog"]}, PARENT)
    spans = ended(traced, collector, 2)
    assert {span.parent_id for span in spans} == {PARENT_ID}
    assert len({span.attributes["gen_ai.request.id"] for span in spans}) == 2


def test_what_was_refused_or_left_is_an_error(traced, collector):
    send(traced.url, "POST", "/v1/completions", BODY | {"temperature": 1e9}, PARENT)
    traced.script("the lazy dog " * 400)
    traced.target.round_s = 0.01
    with grpc.insecure_channel(traced.address) as channel:
        call = stubs.GenerationStub(channel).GenerateStream(pb.GenerateRequest(text="fox"))
        next(call)
        call.cancel()
        traced.until(lambda: traced.service.hub.num_in_flight == 0)
    refused, left = ended(traced, collector, 2)
    assert refused.attributes["error.type"] == "INVALID_ARGUMENT"
    assert refused.error == "temperature"
    assert refused.parent_id == PARENT_ID
    assert left.attributes["error.type"] == "CANCELLED"
    assert "gen_ai.usage.completion_tokens" not in left.attributes


def test_what_is_absurd_is_told_in_short_and_costs_no_span(traced, collector, caplog):
    """A client may send what no span can hold, and megabytes of it."""
    body = BODY | {"max_tokens": 10**30, "top_k": -(10**30)}
    assert send(traced.url, "POST", "/v1/completions", body).status == 400
    body = BODY | {"model": "x" * 1_000_000, "n": 10**400}
    assert send(traced.url, "POST", "/v1/completions", body).status == 404
    large, long = ended(traced, collector, 2)
    assert large.attributes["gen_ai.request.max_tokens"] == 2**63 - 1
    assert large.attributes["gen_ai.request.top_k"] == -(2**63 - 1)
    assert long.attributes["gen_ai.request.model"] == "x" * 256
    assert caplog.records == []


def test_what_a_refusal_quotes_of_a_prompt_does_not_leave(traced, collector):
    body = {"messages": [{"role": "user", "content": "refuse"}]}
    answer = send(traced.url, "POST", "/v1/chat/completions", body, PARENT)
    assert "not this: refuse" in answer.body["error"]["message"]
    (span,) = ended(traced, collector, 1)
    assert (span.attributes["error.type"], span.error) == ("INVALID_ARGUMENT", "chat")
    assert b"refuse" not in collector.content


def test_what_broke_is_told_whole(traced, collector):
    traced.script("the lazy dog " * 400)
    traced.target.round_s = 0.01
    with opened(traced, BODY | {"max_tokens": 400}) as connection:
        traced.until(lambda: traced.target.num_live == 1)
        traced.lose_target("said so")
        assert connection.getresponse().status == 503
    (span,) = ended(traced, collector, 1)
    assert span.attributes["error.type"] == "UNAVAILABLE"
    assert span.error == "target lost: target rank 0 was killed by SIGKILL"


def test_a_collector_that_never_answers_costs_two_seconds_at_the_end_and_nothing_before(make_rig):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rig = make_rig(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        began_s = time.monotonic()
        for _ in range(20):
            assert send(rig.url, "POST", "/v1/completions", BODY).status == 200
        assert time.monotonic() - began_s < 5
        began_s = time.monotonic()
        rig.service.tracer.close()
        assert time.monotonic() - began_s < 5


def test_no_endpoint_makes_no_spans(rig):
    assert rig.service.tracer is None


def test_an_address_becomes_that_of_traces():
    for endpoint in ("http://h:4318", "http://h:4318/"):
        assert traces_url(endpoint) == "http://h:4318/v1/traces"
    assert traces_url("https://h/own/path") == "https://h/own/path"
    for wrong in ("h:4318", "grpc://h:4317", "http://", "4318"):
        with pytest.raises(InvalidField, match=r"^telemetry.otlp_endpoint: is .*must be a URL"):
            traces_url(wrong)


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter"])
def test_without_the_extra_a_launch_says_what_to_type(missing):
    program = f"""
import sys
sys.modules[{missing!r}] = None
from specserve.cli import main
sys.exit(main(["launch", "--target", "tiny", "--otlp-endpoint", "http://127.0.0.1:4318"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("specserve: telemetry.otlp_endpoint: needs OpenTelemetry (opentelemetry")
    assert line.endswith("; install it with: pip install 'specserve[otel]'")


def test_a_launch_refuses_what_is_no_url(refused):
    line = refused("launch", "--otlp-endpoint", "127.0.0.1:4318")
    assert line.startswith("telemetry.otlp_endpoint: is '127.0.0.1:4318'; it must be a URL such as")
