"""Bad input ends in the right status, names its field, and disturbs nothing."""

import time
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace

import grpc
import pytest

from specserve.api import from_proto
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.malformed import Malformed
from specserve.api.status import refusal_of
from specserve.errors import InvalidField, from_code
from specserve.types import Abort, SamplingParams, Submit
from specserve.validation import Limits


@pytest.fixture(scope="module")
def channel(shared_rig):
    """One for all tests: until gRPC says that a channel is ready takes a fifth of a second."""
    with grpc.insecure_channel(shared_rig.address) as channel:
        grpc.channel_ready_future(channel).result(5)
        yield channel


@pytest.fixture
def stub(rig, channel):
    return stubs.GenerationStub(channel)


def refused(method, request):
    with pytest.raises(grpc.RpcError) as caught:
        method(request, timeout=5)
    return caught.value


NAN, INF = float("nan"), float("inf")
BAD_SAMPLING = [
    ("n", 0), ("n", 10**6), ("n", -1), ("n", 2**62), ("max_tokens", 0), ("max_tokens", -5),
    ("min_tokens", -1), ("min_tokens", 10**6), ("logprobs", -1), ("logprobs", 10**6),
    ("prompt_logprobs", 10**6), ("top_k", -2), ("temperature", NAN), ("temperature", -0.1),
    ("temperature", INF), ("top_p", 0.0), ("top_p", 1.1), ("top_p", NAN), ("min_p", -0.1),
    ("min_p", NAN), ("presence_penalty", 3.0), ("presence_penalty", NAN),
    ("frequency_penalty", -INF), ("repetition_penalty", 0.0), ("repetition_penalty", NAN),
    ("logit_bias", {1: NAN}), ("logit_bias", {10**6: 1.0}), ("stop", [""]), ("stop", ["x" * 10**4]),
    ("stop", ["x"] * 1000), ("stop_token_ids", [10**6]), ("stop_token_ids", [1] * 1000),
]  # fmt: skip


class Flood:
    """Entries that nobody should look at."""

    def __len__(self) -> int:
        return 10**6

    def __iter__(self) -> Iterator[str]:
        pytest.fail("they become objects")


def test_a_flood_of_entries_is_refused_before_any_becomes_an_object():
    """The edge runs on the event loop, where a million objects hold up everybody else."""
    limits = Limits(vocab_size=64, max_model_len=8, max_samples=1, max_logprobs=0)
    plain = SamplingParams()
    floods = {
        "stop": pb.SamplingParams(stop=["x"] * 17),
        "stop_token_ids": pb.SamplingParams(stop_token_ids=[1] * 65),
        "logit_bias": pb.SamplingParams(logit_bias=dict.fromkeys(range(1025), 1.0)),
    }
    for field, sampling in floods.items():
        request = pb.GenerateRequest(text="fox", sampling=sampling)
        with pytest.raises(InvalidField, match=rf"^{field}: has \d+ entries; the limit is"):
            from_proto.call_of(request, None, limits, plain)
    flood = SimpleNamespace(
        stop=Flood(), stop_token_ids=(), logit_bias={}, HasField=lambda _: False
    )
    with pytest.raises(InvalidField, match=r"^stop: has 1000000 entries"):
        from_proto._sampling_of(flood, plain)
    turns = [pb.ChatMessage(role="user", content="fox")] * 8
    request = pb.GenerateRequest(chat=pb.ChatMessages(messages=turns))
    with pytest.raises(InvalidField, match=r"^chat: has 8 messages; the limit is 7, at a token"):
        from_proto.call_of(request, None, limits, plain)
    del request.chat.messages[7:]
    assert len(from_proto.call_of(request, None, limits, plain).prompt) == 7


@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING, ids=str)
def test_a_bad_sampling_field_is_named_at_once(rig, stub, field, value):
    request = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(**{field: value}))
    start_s = time.monotonic()
    error = refused(stub.Generate, request)
    assert time.monotonic() - start_s < 0.1
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(field)
    assert "\n" not in error.details()
    assert rig.target.received(Submit) == []
    assert rig.service.hub.num_in_flight == 0


def test_a_bad_top_k_is_told_both_spellings_of_none(rig, stub):
    request = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(top_k=-2))
    details = refused(stub.Generate, request).details()
    wanted = "it must be 0 to 2147483647 (or -1, which means 0)"
    assert details == f"top_k: -2 is out of range; {wanted}"


CHAT = pb.ChatMessages
TURN = pb.ChatMessage
BAD_PROMPTS = [
    ({}, "prompt"),
    ({"text": ""}, "prompt"),
    ({"text": "fox " * 2000}, "prompt"),
    ({"text": "fox" * 10**6}, "prompt"),
    ({"token_ids": pb.TokenIds()}, "prompt"),
    ({"token_ids": pb.TokenIds(ids=[1, 2, 10**6])}, "token_ids"),
    ({"token_ids": pb.TokenIds(ids=[1] * 10**6)}, "token_ids"),
    ({"chat": CHAT()}, "prompt"),
    ({"chat": CHAT(messages=[TURN(role="admin", content="x")])}, "chat.messages[0].role"),
    ({"chat": CHAT(messages=[TURN(role="user", content="refuse")])}, "chat"),
    ({"text": "fox", "request_id": ""}, "request_id"),
    ({"text": "fox", "request_id": "x" * 1000}, "request_id"),
    ({"text": "fox", "cache_salt": "x" * 1000}, "cache_salt"),
    ({"text": "fox", "spec": pb.SpecOptions(mode="banana")}, "spec.mode"),
]


@pytest.mark.parametrize(
    ("fields", "name"),
    BAD_PROMPTS,
    ids=[f"{name}-{place}" for place, (_, name) in enumerate(BAD_PROMPTS)],
)
def test_a_bad_request_is_refused_by_name_and_the_next_one_is_served(rig, stub, fields, name):
    error = refused(stub.Generate, pb.GenerateRequest(**fields))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{name}: ")
    assert stub.Generate(pb.GenerateRequest(text="fox")).samples[0].text == rig.text


@pytest.mark.parametrize(
    ("spec", "name"),
    [({"mode": "async"}, "spec.mode"), ({"max_verify_len": 3}, "spec.max_verify_len")],
)
def test_a_wish_that_cannot_be_met_is_a_failed_precondition(rig, stub, spec, name):
    error = refused(stub.Generate, pb.GenerateRequest(text="fox", spec=pb.SpecOptions(**spec)))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details().startswith(name)


def test_another_model_is_not_found(rig, stub):
    error = refused(stub.Generate, pb.GenerateRequest(text="fox", model="gpt-9"))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "'scripted'" in error.details()


def test_streams_are_refused_with_the_same_words(rig, stub):
    request = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(n=10**6))
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.GenerateStream(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == refused(stub.Generate, request).details()


@pytest.mark.slow
def test_an_oversize_message_is_refused_and_others_go_on(make_rig):
    rig = make_rig(max_message_bytes=100_000)
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        error = refused(stub.Generate, pb.GenerateRequest(text="x" * 200_000))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Generate(pb.GenerateRequest(text="fox")).samples[0].text == rig.text


@pytest.mark.slow
def test_an_answer_too_large_for_a_message_ends_early_and_can_be_streamed(make_rig):
    rig = make_rig(max_message_bytes=64 * 1024, max_model_len=8192)
    rig.target.script, rig.target.per_round = (lambda request, index: [5] * 5000), 10
    sampling = pb.SamplingParams(max_tokens=5000, ignore_eos=True, logprobs=1)
    asked = pb.GenerateRequest(text="fox", sampling=sampling)
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        error = refused(stub.Generate, asked)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details().startswith("max_message_bytes: ")
        rig.until(lambda: rig.target.received(Abort))
        counted = rig.service.metrics.text().decode()
        assert 'failure_total{code="RESOURCE_EXHAUSTED",model_name="scripted"} 1.0' in counted
        assert 'code="CANCELLED"' not in counted
        streamed = [event.token_delta.token_ids for event in stub.GenerateStream(asked)]
        assert sum(map(len, streamed)) == 5000


@pytest.mark.slow
def test_the_queue_is_bounded_and_says_when_to_come_back(make_rig):
    rig = make_rig(max_queued_requests=2)
    rig.target.round_s = 0.05
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        running = [stub.Generate.future(pb.GenerateRequest(text="fox")) for _ in range(2)]
        rig.until(lambda: rig.service.hub.num_in_flight == 2)
        start_s = time.monotonic()
        error = refused(stub.Generate, pb.GenerateRequest(text="fox"))
        assert time.monotonic() - start_s < 0.1
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details().startswith("server.max_queued_requests: 2 ")
        assert ("retry-after", "1") in [tuple(item) for item in error.trailing_metadata()]
        assert [call.result().samples[0].text for call in running] == [rig.text] * 2


@pytest.mark.slow
def test_an_id_in_use_is_refused_and_free_again_afterwards(rig, stub):
    rig.target.round_s = 0.01
    first = stub.GenerateStream(pb.GenerateRequest(text="fox", request_id="mine"))
    next(first)
    error = refused(stub.Generate, pb.GenerateRequest(text="fox", request_id="mine"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith("request_id: ")
    assert len(list(first)) > 2
    assert stub.Generate(pb.GenerateRequest(text="fox", request_id="mine")).request_id == "mine"


def test_a_defect_is_opaque_to_the_client(make_rig, caplog):
    rig = make_rig()
    rig.tokenizer.detokenizer = lambda: 1 / 0
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        error = refused(stub.Generate, pb.GenerateRequest(text="fox"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" not in error.details()
    incident = error.details().rpartition(" ")[2]
    assert any(incident in record.getMessage() for record in caplog.records)
    assert rig.service.hub.num_in_flight == 0


def test_a_broken_model_is_told_without_an_incident(caplog):
    error = from_code("INTERNAL", "the model computes NaN")
    assert refusal_of(error) == (grpc.StatusCode.INTERNAL, "the model computes NaN")
    assert caplog.records == []


MALFORMED = {
    "cut short": pb.GenerateRequest(text="fox").SerializeToString()[:-1],
    "noise": b"\xff" * 40,
    "no UTF-8": pb.GenerateRequest(text="fox").SerializeToString().replace(b"fox", b"\xff\xfe\xfd"),
}
UNARY = ["Generation/Generate", "Control/GetLoad", "Admin/Drain"]
STREAMS = ["Generation/GenerateStream", "SpecInfo/WatchSpecStats"]


def call_of(channel, method):
    path = f"/specserve.v1.{method}"
    if method in UNARY:
        return channel.unary_unary(path)
    return lambda *request, **options: list(channel.unary_stream(path)(*request, **options))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *product([*UNARY, *STREAMS], ["noise"]),
        *product(["Generation/Generate", "Generation/GenerateStream"], ["cut short", "no UTF-8"]),
    ],
)
def test_bytes_that_are_no_request_are_refused_and_leave_no_traceback(
    rig, channel, caplog, method, kind
):
    error = refused(call_of(channel, method), MALFORMED[kind])
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "request: is malformed protobuf, or a string in it is not UTF-8"
    assert caplog.records == []


def test_a_method_that_does_not_exist_stays_unimplemented(rig, channel):
    error = refused(channel.unary_unary("/specserve.v1.Generation/Guess"), b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("path", "sends_stream"),
    [
        ("/grpc.health.v1.Health/Check", False),
        ("/grpc.health.v1.Health/Watch", False),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", True),
    ],
)
def test_standard_services_refuse_what_is_no_message_as_ours_do(
    rig, channel, caplog, path, sends_stream
):
    if sends_stream:
        calls = channel.stream_stream(path)(iter([MALFORMED["noise"]]), timeout=5)
    else:
        calls = channel.unary_stream(path)(MALFORMED["noise"], timeout=5)
    with pytest.raises(grpc.RpcError) as caught:
        list(calls)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caplog.records == []


def test_every_refusal_is_an_error_of_its_own():
    """One that is raised again keeps all frames that it has ever passed."""
    refused_request = Malformed()
    assert refused_request.error is not refused_request.error
