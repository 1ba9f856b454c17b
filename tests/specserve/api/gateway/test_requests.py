"""What a gateway's request becomes, and what of it is refused, by which name."""

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

from specserve.types import Grammar, GrammarKind, SamplingParams, Submit
from tests.specserve.api.gateway.conftest import PROMPT_IDS, asking, refusal

JSON = GrammarKind.JSON_SCHEMA
INVALID, UNSUPPORTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module", autouse=True)
def _one_checker_for_all(shared_rig):
    """Of grammars; it is there before the first test and not after the last."""
    shared_rig.call(shared_rig.service.grammars.check(Grammar(GrammarKind.REGEX, "a")))
    yield
    shared_rig.call(shared_rig.service.grammars.close())


def submitted(rig, worker, request: pb.GenerateRequest):
    """What the target is asked for."""
    list(worker.Generate(request))
    (message,) = rig.target.received(Submit)
    return message.request


def test_every_sampling_field_reaches_the_target(rig, worker):
    values = {
        "temperature": 0.75, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "frequency_penalty": 0.5,
        "presence_penalty": -0.5, "repetition_penalty": 1.5, "max_tokens": 9, "min_tokens": 2,
        "ignore_eos": True, "n": 2, "logprobs": 3, "prompt_logprobs": 1,
        "logit_bias": {5: -2.0}, "stop": ["a b c"], "stop_token_ids": [11],
    }  # fmt: skip
    request = submitted(rig, worker, asking(seed=7, **values))
    expected = values | {"stop": ("a b c",), "stop_token_ids": (11,)}
    assert request.sampling == SamplingParams(**expected)
    assert request.prompt_token_ids == PROMPT_IDS
    assert (request.seed, request.seeded_by_user) == (7, True)


def test_what_is_unset_is_neutral_and_an_answer_goes_on_until_it_ends(rig, worker):
    rig.service.sampling_defaults = SamplingParams(temperature=0.1, top_k=3)  # the gateway knows
    try:
        request = submitted(rig, worker, asking())
    finally:
        rig.service.sampling_defaults = SamplingParams()
    assert request.sampling == SamplingParams(max_tokens=512 - len(PROMPT_IDS))
    assert not request.seeded_by_user


@pytest.mark.parametrize(("sent", "seed"), [(-1, None), (-2, 2**64 - 2), (0, 0)])
def test_seeds_mean_what_they_mean_over_http(rig, worker, sent, seed):
    request = submitted(rig, worker, asking(seed=sent))
    assert request.seeded_by_user == (seed is not None)
    assert seed is None or request.seed == seed


def test_a_deadline_travels_to_the_target(rig, worker):
    list(worker.Generate(asking(), timeout=50))
    assert rig.target.received(Submit)[0].request.deadline_s is not None


def sampling(**fields) -> pb.GenerateRequest:
    return asking(**fields)


def request(**fields) -> pb.GenerateRequest:
    made = asking()
    made.MergeFrom(pb.GenerateRequest(**fields))
    return made


TAG = '{"format": {"type": "const_string", "value": "a"}}'
FORMS = {
    "json_schema": ({"json_schema": '{"type": "null"}'}, JSON, '{"type": "null"}'),
    "json_object": ({"json_object": True}, JSON, '{"type": "object"}'),
    "regex": ({"regex": "fox|dog"}, GrammarKind.REGEX, "fox|dog"),
    "grammar": ({"grammar": 'root ::= "a"'}, GrammarKind.GRAMMAR, 'root ::= "a"'),
    "choice": (
        {"choice": pb.ChoiceConstraint(choices=["a", "b"])}, GrammarKind.CHOICE, '["a","b"]',
    ),
    "structural_tag": ({"structural_tag": TAG}, GrammarKind.STRUCTURAL_TAG, TAG),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_grammars_reach_the_target_with_the_names_of_their_fields(rig, worker, form):
    fields, kind, text = FORMS[form]
    asked = submitted(rig, worker, sampling(grammar_from_first_token=True, **fields))
    assert asked.grammar == Grammar(kind, text, f"sampling_params.{form}")


def test_a_grammar_that_is_none_is_refused_by_its_field(rig, worker):
    error = refusal(worker.Generate(sampling(regex="(")))
    assert error.code() is INVALID
    assert error.details().startswith("sampling_params.regex: ")


REFUSED = {
    "sampling_params.truncate_prompt_tokens: ": sampling(truncate_prompt_tokens=0),
    "kv_transfer_params: ": request(kv_transfer_params=pb.KvTransferParams()),
    "kv_transfer_params_json: ": request(kv_transfer_params_json=""),
    "mm_inputs: ": request(mm_inputs=pb.MultimodalInputs()),
    "extra_mm_inputs: ": request(extra_mm_inputs=[pb.MultimodalInputs()]),
    "media_refs: ": request(media_refs=pb.MediaRefs()),
    "sampling_params.prompt_logprobs: needs the input as `tokenized`": pb.GenerateRequest(
        text="fox", sampling_params=pb.SamplingParams(prompt_logprobs=0)
    ),
}
WRONG = {
    "input: is missing": pb.GenerateRequest(),
    "sampling_params.json_object: is false": sampling(json_object=False),
    "sampling_params.choice: has 0 entries": sampling(choice=pb.ChoiceConstraint()),
    "data_parallel_rank: 1 is not served": request(data_parallel_rank=1),
    "tokenized.input_ids: token id 400 is not in the vocabulary": pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[400])
    ),
    "tokenized.input_ids: has 512 tokens": pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[5] * 512)
    ),
    "prompt: is empty": pb.GenerateRequest(tokenized=pb.TokenizedInput()),
    "logprobs: -1 is out of range": sampling(logprobs=-1),
    "max_tokens: 0 is out of range": sampling(max_tokens=0),
    "top_p: 1.5 is out of range": sampling(top_p=1.5),
    "n: 65 is out of range": sampling(n=65),
    "stop: has 17 entries": sampling(stop=["a"] * 17),
    "logit_bias: token id -1 is not": sampling(logit_bias={-1: 1.0}),
    "request_id: has 257 characters": request(request_id="a" * 257),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_served_is_refused_by_name(rig, worker, words):
    error = refusal(worker.Generate(REFUSED[words]))
    assert error.code() is UNSUPPORTED
    assert error.details().startswith(words)
    assert rig.target.received(Submit) == []


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_is_refused_as_over_other_apis(rig, worker, words):
    error = refusal(worker.Generate(WRONG[words]))
    assert error.code() is INVALID
    assert error.details().startswith(words)
    assert rig.target.received(Submit) == []


def test_every_field_of_a_request_is_served_or_refused():
    """A field that a later version of the protocol adds has to be decided on."""
    served = {"request_id", "tokenized", "text", "sampling_params", "stream", "data_parallel_rank"}
    known = served | {words.partition(":")[0] for words in REFUSED}
    assert {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields} <= known
    ours = {*SamplingParams.__struct_fields__, "seed", "skip_special_tokens", *FORMS}
    ours |= {"grammar_from_first_token"}  # as it is
    # Of texts, which the protocol's answers have not.
    of_texts = {"spaces_between_special_tokens", "include_stop_str_in_output"}
    named = {words.partition(":")[0].removeprefix("sampling_params.") for words in REFUSED}
    fields = {field.name for field in pb.SamplingParams.DESCRIPTOR.fields}
    assert fields <= ours | of_texts | named


def test_what_is_refused_is_counted(rig, worker):
    before = rig.service.metrics.text().decode()
    refusal(worker.Generate(sampling(top_p=1.5)))
    assert rig.service.metrics.text().decode() != before


def test_bytes_that_are_no_message_are_refused(rig):
    with grpc.insecure_channel(rig.address) as channel:
        call = channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")
        error = refusal(call(b"\xff"))
        assert error.code() is INVALID
        assert error.details().startswith("request: is malformed protobuf")


def test_methods_that_are_not_served_say_what_there_is(worker):
    kinds = {
        "Embed": pb.EmbedRequest(),
        "FlushCache": common.FlushCacheRequest(),
        "StartProfile": common.StartProfileRequest(),
        "StopProfile": common.StopProfileRequest(),
    }
    for name, message in kinds.items():
        with pytest.raises(grpc.RpcError) as caught:
            getattr(worker, name)(message)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert ": " in caught.value.details()
    error = refusal(worker.SubscribeKvEvents(common.SubscribeKvEventsRequest()))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details().startswith("SubscribeKvEvents: ")


def test_the_stub_has_no_method_that_nobody_decided_on():
    names = {each.name for each in pb.DESCRIPTOR.services_by_name["VllmEngine"].methods}
    from specserve.api.gateway.servicer import VllmEngineServicer

    assert names <= set(vars(VllmEngineServicer))
    assert issubclass(VllmEngineServicer, stubs.VllmEngineServicer)
