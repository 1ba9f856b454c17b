"""Keys stand for tenants, who neither share nor disturb anything of each other's."""

from collections.abc import Iterator

import grpc
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.types import Abort, Submit
from tests.specserve.api.http.conftest import send
from tests.specserve.api.key_rig import (
    ADMIN,
    ALICE,
    ALICE_TOO,
    BOB,
    KEYS,
    NAMELESS,
    OTHER_NAMELESS,
    bearer,
    key_file,
    keyed,
    rig_of_all,
)

__all__ = ["keyed", "rig_of_all"]

LONG = pb.SamplingParams(max_tokens=400)


@pytest.fixture
def channel(rig_of_all) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(rig_of_all.address) as channel:
        yield channel


@pytest.fixture
def endless(rig_of_all):
    rig_of_all.script("the lazy dog " * 400)
    rig_of_all.target.round_s = 0.005
    return rig_of_all


def salt(rig, key, **fields) -> str:
    """Of prefix blocks, as the target hears it, of a request with `key`."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    rig.target.messages.clear()
    body = {"prompt": "fox", "max_tokens": 1, **fields}
    assert send(rig.url, "POST", "/v1/completions", body, headers=headers).status == 200
    (submitted,) = rig.target.received(Submit)
    return submitted.request.cache_salt


def test_no_two_tenants_have_a_salt_in_common(rig_of_all):
    tenants = (ALICE, BOB, NAMELESS, OTHER_NAMELESS, ADMIN)
    alices = salt(rig_of_all, ALICE)
    # What a client may send to be taken for another tenant.
    wishes = ("", "x", alices, "name:alice", "name:alice\n", "\n", "name:alice\nx")
    salts = {
        (key, wish): salt(rig_of_all, key, cache_salt=wish) for key in tenants for wish in wishes
    }
    assert len(set(salts.values())) == len(salts)
    assert "" not in salts.values()


def test_keys_of_one_name_are_one_tenant(rig_of_all):
    for wish in ("", "x"):
        first = salt(rig_of_all, ALICE, cache_salt=wish)
        assert first == salt(rig_of_all, ALICE_TOO, cache_salt=wish)
        assert first == salt(rig_of_all, ALICE, cache_salt=wish)


def test_salts_tell_nothing_of_keys_and_are_those_of_both_apis(rig_of_all, channel):
    over_http = salt(rig_of_all, ALICE, cache_salt="x")
    assert ALICE not in over_http
    rig_of_all.target.messages.clear()
    request = pb.GenerateRequest(text="fox", cache_salt="x")
    stubs.GenerationStub(channel).Generate(request, metadata=bearer(ALICE), timeout=10)
    (submitted,) = rig_of_all.target.received(Submit)
    assert submitted.request.cache_salt == over_http


def test_without_keys_a_salt_is_the_callers_own(rig):
    assert salt(rig, None, cache_salt="x") == "x"
    assert salt(rig, None) == ""


def test_what_is_wrong_with_a_salt_is_told_of_the_callers_own(rig_of_all):
    headers = {"Authorization": f"Bearer {ALICE}"}
    body = {"prompt": "fox", "cache_salt": "x" * 10_000}
    answer = send(rig_of_all.url, "POST", "/v1/completions", body, headers=headers)
    assert (answer.status, answer.body["error"]["param"]) == (400, "cache_salt")


def test_one_tenant_cannot_end_anothers_request(endless, channel):
    generation, control = stubs.GenerationStub(channel), stubs.ControlStub(channel)
    request = pb.GenerateRequest(text="fox", sampling=LONG, request_id="mine")
    of_alice = generation.GenerateStream(request, metadata=bearer(ALICE))
    next(of_alice)
    # The same id is free to others: that it is taken would tell them what Alice does.
    of_bob = generation.GenerateStream(request, metadata=bearer(BOB))
    next(of_bob)
    for key in (NAMELESS, ADMIN, BOB, BOB):
        control.Abort(pb.AbortRequest(request_id="mine"), metadata=bearer(key))
    with pytest.raises(grpc.RpcError) as caught:
        list(of_bob)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    endless.until(lambda: bool(endless.target.received(Abort)))
    _, bobs = endless.target.received(Submit)
    assert [each.request_id for each in endless.target.received(Abort)] == [bobs.request.request_id]
    control.Abort(pb.AbortRequest(request_id="mine"), metadata=bearer(ALICE_TOO))
    with pytest.raises(grpc.RpcError) as caught:
        list(of_alice)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    endless.until(lambda: len(endless.target.received(Abort)) == 2)


def test_one_tenant_has_so_many_requests_at_once_and_others_have_theirs(endless, channel):
    generation = stubs.GenerationStub(channel)
    request = pb.GenerateRequest(text="fox", sampling=LONG)
    running = [generation.GenerateStream(request, metadata=bearer(k)) for k in (ALICE, ALICE_TOO)]
    for stream in running:
        next(stream)
    with pytest.raises(grpc.RpcError) as caught:
        generation.Generate(request, metadata=bearer(ALICE), timeout=10)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "server.max_requests_per_key: 2" in caught.value.details()
    headers = {"Authorization": f"Bearer {ALICE_TOO}"}
    body = {"prompt": "fox", "max_tokens": 1}
    answer = send(endless.url, "POST", "/v1/completions", body, headers=headers)
    assert (answer.status, answer.body["error"]["type"]) == (429, "rate_limit_error")
    assert int(answer.headers["retry-after"]) > 0
    headers = {"Authorization": f"Bearer {BOB}"}
    assert send(endless.url, "POST", "/v1/completions", body, headers=headers).status == 200
    for stream in running:
        stream.cancel()
    endless.until(lambda: endless.service.hub.num_in_flight == 0)
    generation.Generate(
        pb.GenerateRequest(text="fox", sampling=pb.SamplingParams(max_tokens=1)),
        metadata=bearer(ALICE),
        timeout=10,
    )


@pytest.mark.parametrize(
    ("method", "request_"), [("Drain", pb.DrainRequest()), ("Profile", pb.ProfileRequest())]
)
def test_only_operators_stop_and_watch_the_service(channel, rig_of_all, method, request_):
    for key in (ALICE, BOB, NAMELESS):
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stubs.AdminStub(channel), method)(request_, metadata=bearer(key), timeout=10)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "name one 'admin'" in caught.value.details()
    assert rig_of_all.service.state == "ready"


def test_a_file_of_keys_that_changes_is_read_again(make_rig, tmp_path, monkeypatch):
    monkeypatch.setattr("specserve.api.keys._LOOK_S", 0.0)
    path = key_file(tmp_path)
    rig = make_rig(door={"api_key_file": str(path)})

    def answers(key: str) -> int:
        return send(rig.url, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status

    new = "e0" * 12
    assert (answers(ALICE), answers(new)) == (200, 401)
    path.write_text(KEYS.replace(ALICE, new))
    assert (answers(ALICE), answers(new), answers(BOB)) == (401, 200, 200)
    path.write_text("too short\n")  # what cannot be read changes nothing
    assert (answers(ALICE), answers(new)) == (401, 200)
    path.unlink()
    assert (answers(ALICE), answers(new)) == (401, 200)
    path.write_text(f"alice {ALICE}\n")
    path.chmod(0o604)  # nor does what others can read
    assert (answers(ALICE), answers(new)) == (401, 200)
    path.chmod(0o600)
    assert (answers(ALICE), answers(new)) == (200, 401)
