"""However a request ends early, its state is gone and its client knows; others go on."""

import logging
import threading
import time

import grpc
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.keys import NOBODY
from specserve.errors import Cancelled
from specserve.types import Abort, Submit

LONG = pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=400))


@pytest.fixture
def endless(rig):
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    return rig


@pytest.fixture
def stub(rig):
    with grpc.insecure_channel(rig.address) as channel:
        yield stubs.GenerationStub(channel)


def assert_aborted_within(rig, seconds, since_s):
    rig.until(lambda: rig.target.received(Abort))
    arrived_s = next(at_s for at_s, message in rig.target.messages if isinstance(message, Abort))
    assert arrived_s - since_s < seconds
    rig.until(lambda: rig.service.hub.num_in_flight == 0)


def test_cancelling_a_stream_reaches_the_target_within_100_ms(endless, stub):
    stream = stub.GenerateStream(LONG)
    next(stream), next(stream)
    cancelled_s = time.monotonic()
    stream.cancel()
    assert_aborted_within(endless, 0.1, cancelled_s)


def test_cancelling_a_unary_call_reaches_the_target_within_100_ms(endless, stub):
    call = stub.Generate.future(LONG)
    endless.until(lambda: endless.target.num_live == 1)
    cancelled_s = time.monotonic()
    call.cancel()
    assert_aborted_within(endless, 0.1, cancelled_s)


def test_a_disconnected_client_is_aborted_within_100_ms(endless):
    channel = grpc.insecure_channel(endless.address)
    stream = stubs.GenerationStub(channel).GenerateStream(LONG)  # kept: one let go is cancelled
    next(stream)
    endless.until(lambda: endless.target.num_live == 1)
    closed_s = time.monotonic()
    channel.close()
    assert_aborted_within(endless, 0.1, closed_s)


@pytest.mark.slow
def test_hundreds_of_random_cancels_leave_nothing_behind(endless, stub):
    for index in range(300):
        stream = stub.GenerateStream(LONG)
        for _ in range(index % 4):
            next(stream)
        stream.cancel()
    endless.until(lambda: endless.service.hub.num_in_flight == 0)
    endless.until(lambda: endless.target.num_live == 0)
    assert stub.Generate(pb.GenerateRequest(text="fox")).samples[0].text


@pytest.mark.slow
def test_the_deadline_travels_to_the_target_and_ends_the_request(endless, stub):
    start_s = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.GenerateStream(LONG, timeout=0.3))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    (submitted,) = endless.target.received(Submit)
    assert abs(submitted.request.deadline_s - (start_s + 0.3)) < 0.1
    assert_aborted_within(endless, 0.4, start_s)


def test_a_request_without_deadline_has_none(rig, stub):
    stub.Generate(pb.GenerateRequest(text="fox"))
    assert rig.target.received(Submit)[0].request.deadline_s is None


def test_abort_by_id_ends_the_stream_with_cancelled_and_is_idempotent(endless):
    with grpc.insecure_channel(endless.address) as channel:
        stub, control = stubs.GenerationStub(channel), stubs.ControlStub(channel)
        request = pb.GenerateRequest(request_id="mine")
        request.MergeFrom(LONG)
        stream = stub.GenerateStream(request)
        next(stream)
        for request_id in ("mine", "mine", "never seen"):
            control.Abort(pb.AbortRequest(request_id=request_id))
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    # The target may not even have seen the request yet: wait for the abort, not for idleness.
    endless.until(lambda: len(endless.target.received(Abort)) == 1)
    endless.until(lambda: endless.target.num_live == 0)
    assert len(endless.target.received(Abort)) == 1


@pytest.mark.slow
def test_an_aborted_id_can_be_reused_at_once_without_old_tokens(endless, stub):
    for _ in range(20):
        request = pb.GenerateRequest(text="fox", request_id="mine")
        stream = stub.GenerateStream(request)
        next(stream), next(stream)
        endless.call(_abort(endless, "mine"))
        endless.script("brown", eos=True)
        assert stub.Generate(request).samples[0].text == "brown"
        endless.script("the lazy dog " * 400)


async def _abort(rig, request_id):
    rig.service.hub.abort(request_id, NOBODY, Cancelled("aborted"))


@pytest.mark.slow
def test_a_reader_that_lags_too_far_is_cut_off_and_the_others_are_not(make_rig):
    rig = make_rig(buffer_rounds=50, max_model_len=200_000)
    rig.script("the lazy dog " * 20_000)
    rig.target.per_round = 100
    request = pb.GenerateRequest(
        text="fox", sampling=pb.SamplingParams(max_tokens=100_000, logprobs=1)
    )
    # Without probing, the client's window stays small and the server notices soon.
    options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
    with (
        grpc.insecure_channel(rig.address, options) as lazy,
        grpc.insecure_channel(rig.address) as keen,
    ):
        stalled = stubs.GenerationStub(lazy).GenerateStream(request)
        next(stalled)  # and then never reads
        whole = stubs.GenerationStub(keen).Generate(
            pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=100_000))
        )
        assert whole.samples[0].text == "the lazy dog " * 20_000
        rig.until(lambda: rig.service.hub.num_in_flight == 0)
        with pytest.raises(grpc.RpcError) as caught:
            list(stalled)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "stream_buffer_rounds" in caught.value.details()
    assert "retry-after" not in dict(caught.value.trailing_metadata())  # the same would happen
    assert len(rig.target.received(Abort)) == 1


def collect(call, results):
    try:
        results.append(list(call))
    except grpc.RpcError as error:
        results.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["socket closed", "launcher's word", "silence"])
def test_a_lost_target_ends_every_stream_with_unavailable(make_rig, how):
    rig = make_rig()
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    results: list = []
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        streams = [stub.GenerateStream(LONG) for _ in range(8)]
        for stream in streams:
            next(stream)
        readers = [threading.Thread(target=collect, args=(s, results)) for s in streams]
        for reader in readers:
            reader.start()
        rig.lose_target(how)
        for reader in readers:
            reader.join(5)
        codes = [result.code() for result in results]
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 8
        assert {result.details().partition(":")[0] for result in results} == {"target lost"}
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(LONG)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert rig.service.hub.num_in_flight == 0


def test_a_hole_in_the_targets_frames_ends_the_open_streams_and_no_later_one(endless, stub):
    stream = stub.GenerateStream(LONG)
    next(stream)
    endless.target.lose_a_frame.set()
    with pytest.raises(grpc.RpcError) as caught:
        list(stream)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "lost" in caught.value.details()
    endless.script("fox")
    assert stub.Generate(pb.GenerateRequest(text="fox")).samples[0].text == "fox"


@pytest.mark.slow
def test_draining_flips_health_refuses_the_new_and_finishes_the_running(make_rig):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    rig = make_rig()
    rig.target.round_s = 0.02
    with grpc.insecure_channel(rig.address) as channel:
        stub = stubs.GenerationStub(channel)
        running = stub.Generate.future(pb.GenerateRequest(text="fox"))
        rig.until(lambda: rig.target.num_live == 1)
        drain = stubs.AdminStub(channel).Drain.future(pb.DrainRequest(timeout_s=20))
        rig.until(lambda: rig.service.hub.draining.is_set())
        checks = health_pb2_grpc.HealthStub(channel)
        for name in ("", "specserve.v1.Generation"):
            status = checks.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(pb.GenerateRequest(text="fox"))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details().startswith("draining")
        trailers = dict(caught.value.trailing_metadata())
        assert 1 <= int(trailers["retry-after"]) <= 20  # another service should be there by then
        assert running.result().samples[0].text == rig.text
        assert drain.result().num_in_flight == 0


def test_the_log_tells_when_the_target_has_drained(make_rig, caplog):
    rig = make_rig()
    with caplog.at_level(logging.INFO), grpc.insecure_channel(rig.address) as channel:
        stubs.AdminStub(channel).Drain(pb.DrainRequest())
        rig.until(lambda: "the target has drained" in caplog.messages)


def test_a_drain_that_runs_out_of_time_says_what_is_left(make_rig):
    rig = make_rig()
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.02
    with grpc.insecure_channel(rig.address) as channel:
        stream = stubs.GenerationStub(channel).GenerateStream(LONG)
        next(stream)
        drained = stubs.AdminStub(channel).Drain(pb.DrainRequest(timeout_s=0.1))
        assert drained.num_in_flight == 1
        next(stream)
        stream.cancel()


@pytest.mark.slow
def test_a_drain_that_was_announced_begins_though_its_caller_has_left(make_rig):
    rig = make_rig(door={"drain_notice_s": 0.5})
    with grpc.insecure_channel(rig.address) as channel:
        admin, began_s = stubs.AdminStub(channel), time.monotonic()
        with pytest.raises(grpc.RpcError):
            admin.Drain(pb.DrainRequest(), timeout=0.1)
        assert rig.service.state == "draining"
        assert not rig.service.hub.draining.is_set()
        rig.until(rig.service.hub.draining.is_set)
        assert time.monotonic() - began_s > 0.4
        began_s = time.monotonic()
        assert admin.Drain(pb.DrainRequest(), timeout=20).num_in_flight == 0
        assert time.monotonic() - began_s < 0.4  # who asks again waits for no second notice
