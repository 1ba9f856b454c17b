"""What a gateway gets of its requests: pieces, ends, counts, log probabilities."""

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

from specserve.types import TokenOrigin
from tests.specserve.api.gateway.conftest import (
    PROMPT_IDS,
    asking,
    ends_of,
    pieces_of,
    refusal,
)


def test_a_whole_answer_is_one_end_with_all_tokens(rig, worker):
    answers = list(worker.Generate(asking()))
    (end,) = ends_of(answers)
    assert len(answers) == 1
    assert list(end.output_ids) == rig.script_ids
    assert end.completion_tokens == len(rig.script_ids)
    assert (end.finish_reason, end.prompt_tokens, end.cached_tokens) == ("stop", 3, 1)
    assert end.WhichOneof("matched_stop") is None  # the model's own end is nobody's stop token


def test_pieces_of_a_stream_have_what_is_new_and_its_end_has_all(rig, worker):
    rig.target.per_round = 3
    answers = list(worker.Generate(asking(stream=True)))
    pieces = pieces_of(answers)
    assert [token for each in pieces for token in each.token_ids] == rig.script_ids
    assert len(pieces[0].token_ids) == pieces[0].completion_tokens
    assert sum(each.completion_tokens for each in pieces) == len(rig.script_ids)
    assert {each.prompt_tokens for each in pieces} == {3}
    (end,) = ends_of(answers)
    assert list(end.output_ids) == rig.script_ids
    assert answers[-1].HasField("complete")


def test_the_last_piece_says_how_much_of_the_prompt_was_cached(rig, worker):
    answers = list(worker.Generate(asking(stream=True)))
    last = pieces_of(answers)[-1]
    assert (last.cached_tokens, list(last.token_ids), last.completion_tokens) == (1, [], 0)


@pytest.mark.parametrize("stream", [False, True])
def test_samples_are_told_apart_by_their_index(rig, worker, stream):
    rig.target.script = lambda request, index: [20 + index] * (2 + index)
    answers = list(worker.Generate(asking(n=3, max_tokens=9, stream=stream)))
    ends = {end.index: (list(end.output_ids), end.finish_reason) for end in ends_of(answers)}
    assert ends == {index: ([20 + index] * (2 + index), "length") for index in range(3)}
    found = {each.index for each in pieces_of(answers)}
    assert found == ({0, 1, 2} if stream else set())


def test_an_end_says_what_speculation_did_for_its_sample(rig, worker):
    rig.target.script = lambda request, index: [20] * (6 if index else 4)
    rig.target.per_round, rig.target.verify_len = 2, 3
    rig.target.origins = (TokenOrigin.DRAFTED, TokenOrigin.RECOVERY)
    ends = ends_of(worker.Generate(asking(n=2)))
    found = {end.index: (end.spec_accepted_tokens, end.spec_draft_tokens) for end in ends}
    assert found == {0: (2, 6), 1: (3, 9)}


def test_drafted_tokens_that_a_stop_string_cut_off_are_not_counted(rig, worker):
    rig.script("the lazy dog")
    first, *others = rig.script_ids
    rig.target.script = lambda request, index: [first, *rig.encode("STOP"), *others]
    rig.target.per_round, rig.target.verify_len = 40, 7
    rig.target.origins = (TokenOrigin.DRAFTED,) * 40
    (end,) = ends_of(worker.Generate(asking(stop=["STOP"])))
    assert end.matched_stop_str == "STOP"
    assert list(end.output_ids) == [first, *rig.encode("STOP")]
    assert end.spec_accepted_tokens == end.completion_tokens == len(end.output_ids)
    assert end.spec_draft_tokens == 7


def test_a_stop_token_of_the_request_is_told(rig, worker):
    stop = rig.script_ids[4]
    (end,) = ends_of(worker.Generate(asking(stop_token_ids=[stop])))
    assert (end.finish_reason, end.matched_token_id) == ("stop", stop)
    assert end.output_ids[-1] == stop


def test_log_probabilities_of_tokens_come_with_them(rig, worker):
    whole = ends_of(worker.Generate(asking(logprobs=2)))[0].output_logprobs
    assert list(whole.token_ids) == rig.script_ids
    assert whole.token_logprobs[0] == -0.5
    assert list(whole.top_logprobs[0].token_ids) == [rig.script_ids[0], rig.script_ids[0] + 1]
    assert list(whole.top_logprobs[0].values) == [-0.5, -1.5]
    answers = list(worker.Generate(asking(logprobs=2, stream=True)))
    streamed = [token for each in pieces_of(answers) for token in each.output_logprobs.token_ids]
    assert streamed == rig.script_ids
    assert not ends_of(answers)[0].HasField("output_logprobs")


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_the_prompt_begin_with_a_token_that_has_none(rig, worker, stream):
    answers = list(worker.Generate(asking(prompt_logprobs=1, n=2, stream=stream)))
    parts = pieces_of(answers) if stream else ends_of(answers)
    told = [each.input_logprobs for each in parts if each.HasField("input_logprobs")]
    assert len(told) == 2  # one for each sample
    for each in told:
        assert list(each.token_ids) == PROMPT_IDS
        assert [part.HasField("value") for part in each.token_logprobs] == [False, True, True]
        assert each.token_logprobs[1].value == -0.5
        assert [len(top.values) for top in each.top_logprobs] == [0, 2, 2]


def test_a_text_is_a_prompt_as_well(rig, worker):
    request = pb.GenerateRequest(text="fox")
    (end,) = ends_of(worker.Generate(request))
    assert list(end.output_ids) == rig.script_ids


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_cannot_be_sent_ends_with_the_limit(make_rig, stream):
    rig = make_rig(max_message_bytes=900)
    rig.script("the lazy dog " * 40)
    rig.target.per_round = 60
    with grpc.insecure_channel(rig.address) as channel:
        worker = stubs.VllmEngineStub(channel)
        error = refusal(worker.Generate(asking(logprobs=2, max_tokens=400, stream=stream)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than 900 bytes; ask for fewer tokens" in error.details()
    counted = rig.service.metrics.text().decode()
    assert 'request_failure_total{code="RESOURCE_EXHAUSTED",model_name="scripted"} 1.0' in counted
