"""Generate and GenerateStream over real sockets, against a scripted target."""

import grpc
import pytest

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.types import SamplingParams, StopSample, Submit


@pytest.fixture
def stub(rig):
    with grpc.insecure_channel(rig.address) as channel:
        yield stubs.GenerationStub(channel)


def request(**fields):
    sampling = pb.SamplingParams(**fields.pop("sampling", {}))
    fields.setdefault("text", "the quick")
    return pb.GenerateRequest(sampling=sampling, **fields)


def deltas(stream, sample_index=0):
    events = list(stream)
    assert [event.WhichOneof("event") for event in events[:1]] == ["prompt"]
    assert events[-1].WhichOneof("event") == "finished"
    of_sample = [
        event.token_delta
        for event in events[1:-1]
        if event.token_delta.sample_index == sample_index
    ]
    return of_sample, events[-1].finished


def test_unary_and_streamed_text_are_the_script_without_its_end_token(rig, stub):
    whole = stub.Generate(request())
    parts, finished = deltas(stub.GenerateStream(request()))
    assert whole.samples[0].text == rig.text == "".join(part.text for part in parts)
    assert list(whole.samples[0].token_ids) == rig.script_ids
    assert whole.finished.samples[0].finish_reason == "stop"
    assert whole.finished.samples[0].stop_token_id == 0
    assert finished.usage.num_generated_tokens == len(rig.script_ids)


@pytest.mark.parametrize("per_round", [1, 2, 3, 7])
def test_no_delta_holds_a_broken_character(rig, stub, per_round):
    rig.target.per_round = per_round
    rig.script("🦊🐻‍❄️ é — 漢字 <think more>")
    parts, _ = deltas(stub.GenerateStream(request()))
    assert "".join(part.text for part in parts) == "🦊🐻‍❄️ é — 漢字 <think more>"
    assert not any("\ufffd" in part.text for part in parts)


@pytest.mark.parametrize("per_round", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", ["brown fox", "🦊", "fox é", "STOP here.", " "])
def test_text_ends_before_the_stop_string_wherever_tokens_are_cut(rig, stub, per_round, stop):
    rig.target.per_round = per_round
    parts, finished = deltas(stub.GenerateStream(request(sampling={"stop": ["zzz", stop]})))
    assert "".join(part.text for part in parts) == rig.text[: rig.text.index(stop)]
    end = finished.samples[0]
    assert (end.finish_reason, end.stop_string) == ("stop", stop)
    token_ids = [token for part in parts for token in part.token_ids]
    assert finished.usage.num_generated_tokens == len(token_ids)
    assert stop in rig.tokenizer.decode(token_ids)
    assert stop not in rig.tokenizer.decode(token_ids[:-1])


def test_a_stop_string_stops_the_sample_on_the_target_too(rig, stub):
    rig.target.round_s = 0.02
    list(stub.GenerateStream(request(sampling={"stop": ["quick"]})))
    assert len(rig.target.received(StopSample)) == 1


def test_an_unfinished_stop_string_is_shown_at_the_end(rig, stub):
    rig.script("go on, ST")
    whole = stub.Generate(request(sampling={"stop": ["STOP"]}))
    assert whole.samples[0].text == "go on, ST"


def test_a_stop_string_before_min_tokens_is_ordinary_text(rig, stub):
    rig.script("fox fox fox fox")
    first = len(rig.encode("fox fox"))
    whole = stub.Generate(request(sampling={"stop": ["fox"], "min_tokens": first + 1}))
    assert whole.samples[0].text == "fox fox "


def test_an_incomplete_character_at_the_end_becomes_a_replacement(rig, stub):
    rig.script("🦊", eos=False)
    rig.script_ids = rig.script_ids[:-1]
    whole = stub.Generate(request())
    assert whole.samples[0].text == rig.tokenizer.decode(rig.script_ids) == "\ufffd"
    assert whole.finished.samples[0].finish_reason == "length"


def test_a_stop_string_that_only_the_end_completes_counts_the_last_token(rig, stub):
    rig.script("🦊", eos=False)
    rig.script_ids = rig.script_ids[:-1]
    for min_tokens in (0, len(rig.script_ids)):
        sampling = {"stop": ["\ufffd"], "min_tokens": min_tokens}
        end = stub.Generate(request(sampling=sampling)).finished.samples[0]
        assert (end.finish_reason, end.stop_string) == ("stop", "\ufffd")
    sampling = {"stop": ["\ufffd"], "min_tokens": len(rig.script_ids) + 1}
    end = stub.Generate(request(sampling=sampling)).finished.samples[0]
    assert end.finish_reason == "length"


def test_three_samples_share_one_stream_and_end_each_for_its_own_reason(rig, stub):
    scripts = [[*rig.encode("the lazy dog"), 0], rig.encode("brown STOP fox"), rig.encode("a" * 40)]
    rig.target.script = lambda request, index: scripts[index]
    sampling = {"n": 3, "stop": ["STOP"], "max_tokens": 20}
    whole = stub.Generate(request(sampling=sampling))
    assert [sample.text for sample in whole.samples] == ["the lazy dog", "brown ", "a" * 20]
    ends = [(end.finish_reason, end.stop_string) for end in whole.finished.samples]
    assert ends == [("stop", ""), ("stop", "STOP"), ("length", "")]
    assert [sample.sample_index for sample in whole.samples] == [0, 1, 2]


def test_logprobs_travel_with_their_tokens(rig, stub):
    text_request = request(sampling={"logprobs": 2, "prompt_logprobs": 2, "stop": ["brown"]})
    whole = stub.Generate(text_request)
    sample = whole.samples[0]
    assert [position.token_id for position in sample.logprobs] == list(sample.token_ids)
    assert [top.logprob for top in sample.logprobs[0].top] == [-0.5, -1.5]
    prompt_ids = rig.encode("the quick")
    assert [position.token_id for position in whole.prompt.prompt_logprobs] == prompt_ids[1:]


def test_logprobs_say_what_their_tokens_stand_for(rig, stub):
    rig.script("a 🦊 é <think more>")
    whole = stub.Generate(request(text="fox", sampling={"logprobs": 1, "prompt_logprobs": 0}))
    *shown, end = whole.samples[0].logprobs
    text = whole.samples[0].text
    assert b"".join(position.token_bytes for position in shown) == text.encode()
    assert any(position.token_bytes in "🦊".encode() for position in shown)  # a part of it
    assert end.token_bytes == b"<eos>"
    for position in (*shown, end):
        assert position.top[0].token_bytes == position.token_bytes
    prompt_ids = rig.encode("fox")
    told = [position.token_bytes for position in whole.prompt.prompt_logprobs]
    assert told == [rig.tokenizer.decode([token]).encode() for token in prompt_ids[1:]]


def test_prompt_logprobs_of_a_long_prompt_come_complete_and_in_order(make_rig):
    rig = make_rig(max_model_len=2000)
    ids = [index % 300 for index in range(1500)]
    with grpc.insecure_channel(rig.address) as channel:
        stream = stubs.GenerationStub(channel).GenerateStream(
            request(text=None, token_ids=pb.TokenIds(ids=ids), sampling={"prompt_logprobs": 0})
        )
        infos = [event.prompt for event in stream if event.WhichOneof("event") == "prompt"]
    assert len(infos) > 2
    assert [p.token_id for info in infos for p in info.prompt_logprobs] == ids[1:]


def test_every_token_is_tagged_with_its_origin(rig, stub):
    sample = stub.Generate(request()).samples[0]
    assert list(sample.origins) == [pb.TOKEN_ORIGIN_PLAIN] * len(sample.token_ids)


def test_token_ids_and_chat_reach_the_target_as_the_model_folder_says(rig, stub):
    stub.Generate(request(text=None, token_ids=pb.TokenIds(ids=[5, 6, 7])))
    chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="fox")])
    stub.Generate(request(text=None, chat=chat))
    submitted = [message.request.prompt_token_ids for message in rig.target.received(Submit)]
    assert submitted[0] == [5, 6, 7]
    assert rig.tokenizer.decode(submitted[1]) == "user: fox\nassistant:"


def test_absent_fields_mean_the_defaults_and_zero_is_kept(rig, stub):
    stub.Generate(request())
    stub.Generate(request(sampling={"temperature": 0.0, "logprobs": 0}))
    plain, greedy = [message.request.sampling for message in rig.target.received(Submit)]
    assert plain == SamplingParams()
    assert (greedy.temperature, greedy.logprobs, greedy.top_p) == (0.0, 0, 1.0)


def test_unseeded_requests_get_different_seeds_and_seeded_ones_keep_theirs(rig, stub):
    for seed in (None, None, 0, 2**64 - 1):
        stub.Generate(request(seed=seed))
    requests = [message.request for message in rig.target.received(Submit)]
    assert requests[0].seed != requests[1].seed
    assert [(r.seed, r.seeded_by_user) for r in requests[2:]] == [(0, True), (2**64 - 1, True)]


def test_usage_and_timings_are_those_of_target_and_door(rig, stub):
    finished = stub.Generate(request(spec=pb.SpecOptions(return_stats=True))).finished
    assert (finished.usage.num_prompt_tokens, finished.usage.num_cached_tokens) == (3, 1)
    assert finished.timings.prefill_s == 0.5
    assert 0 < finished.timings.time_to_first_token_s <= finished.timings.total_s
    assert finished.HasField("spec")
    assert finished.spec.num_draft_tokens == 0
