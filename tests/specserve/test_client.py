"""The Python client, sync and async, over a real connection."""

import asyncio
import threading

import msgspec
import numpy as np
import pytest

from specserve.access import unreached
from specserve.api.call import ChatMessage, SpecOptions
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.client import AsyncClient, Client
from specserve.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidField,
    NotFound,
    Unavailable,
    Unsupported,
)
from specserve.types import Abort, FinishReason, Load, SamplingParams, Submit
from tests.specserve.api.conftest import (  # noqa: F401 - fixtures
    make_rig,
    model_folder,
    rig,
    shared_rig,
)


@pytest.fixture
def client(rig):  # noqa: F811
    with Client(rig.address) as client:
        yield client


def test_generate_returns_all_samples_with_their_endings(rig, client):  # noqa: F811
    done = client.generate("the quick", n=2, stop=["brown"], logprobs=1, seed=3, max_tokens=30)
    assert done.text == done.samples[1].text == rig.text.partition("brown")[0]
    assert [sample.finish_reason for sample in done.samples] == [FinishReason.STOP] * 2
    assert done.samples[0].stop_string == "brown"
    assert len(done.samples[0].logprobs) == len(done.samples[0].token_ids)
    assert done.usage.num_generated_tokens == 2 * len(done.samples[0].token_ids)
    assert done.spec is None


def test_a_stream_gives_the_text_then_knows_prompt_and_end(rig, client):  # noqa: F811
    stream = client.stream("the quick", prompt_logprobs=0)
    assert "".join(delta.text for delta in stream) == rig.text == client.generate("the").text
    assert len(stream.prompt.prompt_logprobs) == stream.prompt.num_prompt_tokens - 1
    assert stream.finished.samples[0].stop_token_id == 0


def test_every_option_reaches_the_target(rig, client):  # noqa: F811
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {4: 2.0},
        "stop": ("zzz",), "stop_token_ids": (9,), "min_tokens": 1, "max_tokens": 40,
        "ignore_eos": True, "n": 2, "logprobs": 0, "prompt_logprobs": 1,
    }  # fmt: skip
    assert set(options) == set(SamplingParams.__struct_fields__)
    own = {"seed": 5, "cache_salt": "me", "priority": -2, "min_tokens_per_s": 32.5}
    client.generate([1, 2, 3], timeout_s=9, **own, **options)
    request = rig.target.received(Submit)[0].request
    assert request.sampling == SamplingParams(**options)
    assert {name: getattr(request, name) for name in own} == own
    assert request.prompt_token_ids == [1, 2, 3]
    assert request.deadline_s is not None


def test_nothing_is_aimed_at_unless_it_was_asked_for(rig, client):  # noqa: F811
    client.generate("fox")
    request = rig.target.received(Submit)[0].request
    assert (request.priority, request.min_tokens_per_s) == (0, None)


@pytest.mark.parametrize("pace", [0.0, -1.0, 1.1e6, float("nan"), float("inf")])
def test_a_pace_that_none_can_aim_at_is_refused_with_its_limit(client, pace):
    with pytest.raises(InvalidField) as caught:
        client.generate("fox", min_tokens_per_s=pace)
    assert caught.value.field == "min_tokens_per_s"
    assert "is out of range; it must be above 0 and at most 1e+06" in str(caught.value)


@pytest.mark.parametrize("kind", [ChatMessage, lambda role, text: {"role": role, "content": text}])
def test_chat_messages_are_rendered_by_the_server(rig, client, kind):  # noqa: F811
    client.generate([kind("user", "fox")])
    ids = rig.target.received(Submit)[0].request.prompt_token_ids
    assert rig.tokenizer.decode(ids) == "user: fox\nassistant:"


def test_a_message_with_other_keys_is_refused_by_their_names(client):
    with pytest.raises(InvalidField, match="a message of role, text; one has role and content"):
        client.generate([{"role": "user", "text": "fox"}])


def test_errors_are_ours_by_kind(rig, client):  # noqa: F811
    with pytest.raises(InvalidField) as caught:
        client.generate("fox", temperature=float("nan"))
    assert caught.value.field == "temperature"
    with pytest.raises(InvalidField):
        list(client.stream("fox", n=10**6))
    with pytest.raises(NotFound):
        client.generate("fox", model="other")
    with pytest.raises(Unsupported):
        client.generate("fox", spec=SpecOptions(mode="sync"))
    rig.target.round_s = 0.05
    with pytest.raises(DeadlineExceeded):
        client.generate("fox", timeout_s=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"temprature": 1.0},
        {"deadline_s": 1.0},  # what a caller that need not wait for a wire may set
        {"sampling": SamplingParams()},
        {"n": "three"},
        {"n": 2**70},
        {"stop": "word"},
    ],
    ids=str,
)
def test_options_that_no_server_could_take_fail_here(client, options):
    with pytest.raises(InvalidField):
        client.generate("fox", **options)


def test_an_unknown_option_is_refused_by_name(client):
    with pytest.raises(InvalidField, match=r"^deadline_s: is no known option"):
        client.stream("fox", deadline_s=1.0)


@pytest.mark.parametrize("prompt", [[1, np.int64(2), 3], np.array([1, 2, 3]), (1, 2, 3)], ids=str)
def test_token_ids_may_be_integers_of_any_kind(rig, client, prompt):  # noqa: F811
    client.generate(prompt)
    assert rig.target.received(Submit)[0].request.prompt_token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (["a", "b"], "token_ids: has an item of type str; all must be integers"),
        ([1, 2.0, 3], "token_ids: has an item of type float; all must be integers"),
        ([True, 7], "token_ids: has an item of type bool; all must be integers"),
        ([ChatMessage("user", "fox"), "fox"], "chat: has an item of type str; all must be Chat"),
        ([1, ChatMessage("user", "fox")], "chat: has an item of type int; all must be Chat"),
    ],
    ids=str,
)
def test_a_prompt_of_anything_else_is_refused_instead_of_shortened(client, prompt, problem):
    with pytest.raises(InvalidField, match=f"^{problem}"):
        client.generate(prompt)


@pytest.mark.parametrize("top_k", [0, -1])
def test_both_spellings_of_no_top_k_are_known(rig, client, top_k):  # noqa: F811
    client.generate("fox", top_k=top_k)
    assert rig.target.received(Submit)[0].request.sampling.top_k == 0


def test_a_minimum_beyond_the_models_length_is_refused_at_the_door(rig, client):  # noqa: F811
    with pytest.raises(InvalidField, match=r"^min_tokens: 5000 .* max_model_len 512"):
        client.generate("fox", max_tokens=10_000, min_tokens=5000)
    assert rig.target.received(Submit) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1"])
def test_where_nobody_listens_the_address_and_what_to_type_are_told(address):
    with Client(address) as client:
        for call in (client.server_info, lambda: list(client.stream("fox"))):
            with pytest.raises(Unavailable) as caught:
                call()
            told = str(caught.value)
            assert told.startswith(f"no service answers at {address} (")
            assert "; start one with: specserve launch --port 1, or correct the address" in told

    async def use():
        async with AsyncClient(address) as client:
            with pytest.raises(Unavailable, match=r"no service answers at .*specserve launch"):
                await client.load()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("details", "told"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7411: Failed "
            "to connect to remote host: Connection refused",
            "no service answers at 127.0.0.1:7411 (Connection refused); start one with: specserve "
            "launch, or",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:8000: "
            "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)",
            "no service answers at 127.0.0.1:8000 (Failed parsing HTTP/2 (Expected",
        ),
        (
            "errors resolving foo.invalid:7411: [field:hostname lookup error: Domain not found]",
            "no service answers at foo.invalid:7411 ([field:hostname",
        ),
    ],
)
def test_what_grpc_says_of_a_connection_that_never_was(details, told):
    assert (unreached(details) or "").startswith(told)


@pytest.mark.parametrize(
    "details", ["draining: 3 requests run to their end", "target lost: x", "Socket closed", ""]
)
def test_what_a_service_says_itself_is_left_as_it_is(details):
    assert unreached(details) is None


def test_leaving_a_stream_early_aborts_the_request(rig, client):  # noqa: F811
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    for _ in client.stream("fox", max_tokens=400):
        break
    rig.until(lambda: rig.target.received(Abort))


def test_abort_by_id_raises_cancelled_in_the_reader(rig, client):  # noqa: F811
    rig.script("the lazy dog " * 400)
    rig.target.round_s = 0.005
    stream = client.stream("fox", max_tokens=400, request_id="mine")
    timer = threading.Timer(0.1, client.abort, ["mine"])
    timer.start()
    with pytest.raises(Cancelled):
        list(stream)
    timer.join()


def test_server_model_and_load_are_records(rig, client):  # noqa: F811
    info = client.server_info()
    assert info.state == "ready"
    limits = msgspec.structs.asdict(info.limits)
    assert limits["max_samples"] == 64
    assert min(limits.values()) > 0
    assert client.model_info().eos_token_ids == (0,)
    load = client.load()
    assert load.num_in_flight == 0
    assert 0 <= load.report_age_s < 1


def test_what_speculation_is_and_achieves_are_records(rig, client):  # noqa: F811
    rig.target.load = Load(
        num_drafts=4, num_drafted_tokens=20, num_accepted_tokens=15, num_lookups=10, num_hits=9
    )
    rig.until(lambda: client.spec_stats().num_drafts == 4)
    config, stats = client.spec_config(), client.spec_stats()
    assert config.mode
    assert (stats.acceptance_rate, stats.hit_rate) == (0.75, 0.9)

    async def use():
        async with AsyncClient(rig.address) as other:
            assert await other.spec_config() == config
            assert (await other.spec_stats()).num_hits == 9

    rig.call(use())
    rig.target.load = Load()
    rig.until(lambda: client.spec_stats().hit_rate is None)


def test_statistics_are_told_while_a_service_drains(make_rig):  # noqa: F811
    own = make_rig()
    own.script("the lazy dog " * 400)
    own.target.round_s = 0.02
    with Client(own.address) as client:
        running = client.stream("fox", max_tokens=400)
        next(iter(running))
        own.service.hub.draining.set()
        assert client.server_info().state == "draining"
        assert client.spec_stats().num_drafts == 0
        running.cancel()


class _Watch:
    """A stream of statistics."""

    def __init__(self, *messages):
        self._messages = iter(messages)
        self.is_cancelled = False

    def __next__(self):
        return next(self._messages)

    def cancel(self):
        self.is_cancelled = True


def test_a_stream_of_statistics_is_left_after_its_first_message(client, monkeypatch):
    watch = _Watch(*[pb.SpecStats(num_hits=3)] * 2)
    monkeypatch.setattr(client._spec_info, "WatchSpecStats", lambda *_, **__: watch)
    assert client.spec_stats().num_hits == 3
    assert watch.is_cancelled
    monkeypatch.setattr(client._spec_info, "WatchSpecStats", lambda *_, **__: _Watch())
    with pytest.raises(Unavailable, match="no statistics"):
        client.spec_stats()


@pytest.mark.parametrize(
    ("prompt", "options", "problem"),
    [
        ("x", {"seed": -1}, "seed: -1 is out of range; it must be 0 to 18446744073709551615"),
        ("x", {"n": 10**20}, "n: 100000000000000000000 is out of range; it must be 1 to 64"),
        ("x", {"logprobs": 10**20}, "it must be 0 to 20"),
        ("x", {"max_tokens": -(10**20)}, "it must be 1 to 9223372036854775807"),
        ("x", {"min_tokens": 10**20}, "it must be 0 to max_tokens"),
        ("x", {"top_k": 10**20}, r"it must be 0 to 2147483647 \(or -1, which means 0\)"),
        ("x", {"stop_token_ids": [3, -4]}, "stop_token_ids: token id -4 is out of range; it must"),
        ("x", {"stop_token_ids": [3, "a"]}, "stop_token_ids: has an item of type str"),
        ("x", {"logit_bias": {-5: 1.0}}, "logit_bias: token id -5 .* 0 to vocab_size - 1"),
        ([7, 2**32], {}, "token_ids: token id 4294967296 is out of range"),
        ("\udcff", {}, "prompt: is not valid Unicode"),
        ("x", {"max_tokens": 3.5}, "max_tokens: 3.5 is no integer"),
        (b"abc", {}, "prompt: is of type bytes; it must be a string"),
        (memoryview(b"abc"), {}, "prompt: is of type memoryview; it must be a string"),
        ({5, 6}, {}, "prompt: is of type set; it must be a string"),
        ("x", {"request_id": 5}, "request_id: 5 is no string"),
        ("x", {"spec": None}, "spec: is None; it must be a SpecOptions"),
        (5, {}, "prompt: is of type int; it must be a string, token ids or messages"),
        (None, {}, "prompt: is of type NoneType; it must be"),
        (ChatMessage("user", "fox"), {}, "prompt: is of type ChatMessage; it must be"),
        ("x", {"timeout_s": "3"}, "timeout_s: '3' is no number of seconds"),
        ("x", {"timeout_s": float("nan")}, "timeout_s: is not a number"),
    ],
)
def test_values_the_wire_cannot_carry_are_refused_by_name(client, prompt, options, problem):
    with pytest.raises(InvalidField, match=problem):
        client.generate(prompt, **options)


@pytest.mark.parametrize("request_id", [5, "\udc80", None, b"x"])
def test_what_cannot_be_aborted_is_refused_by_name(client, request_id):
    with pytest.raises(InvalidField, match="request_id: "):
        client.abort(request_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    "timeout_s", [float("inf"), 1e300, 10**400, np.float32(30), np.int64(30), None]
)
def test_no_deadline_may_be_said_in_several_ways(rig, client, timeout_s):  # noqa: F811
    assert client.generate("fox", timeout_s=timeout_s).text == rig.text
    assert "".join(delta.text for delta in client.stream("fox", timeout_s=timeout_s)) == rig.text

    async def use():
        async with AsyncClient(rig.address) as client:
            return await client.generate("fox", timeout_s=timeout_s)

    assert rig.call(use()).text == rig.text


def test_a_closed_client_says_so(rig):  # noqa: F811
    client = Client(rig.address)
    client.close()
    for call in (client.load, lambda: client.generate("fox"), lambda: list(client.stream("fox"))):
        with pytest.raises(Unavailable, match="the client is closed"):
            call()

    async def use():
        client = AsyncClient(rig.address)
        await client.close()
        with pytest.raises(Unavailable, match="the client is closed"):
            await client.generate("fox")
        with pytest.raises(Unavailable, match="the client is closed"):
            async for _ in client.stream("fox"):
                pass

    rig.call(use())
