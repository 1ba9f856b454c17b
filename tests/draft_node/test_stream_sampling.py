"""A state that follows a stream is the one that the target has at the same token."""

from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from draft_node.stream_sampling import StreamSampling
from specserve.sampling.state import SamplingState
from specserve.transport.control.draft_control import SamplingParameters
from specserve.types import Grammar, GrammarKind, SamplingParams
from tests.exactness.grammars import TOKENS, compiler

PROMPT, VOCAB = [5, 9, 3, 7, 5, 9, 3], 60
TEXT = [*PROMPT, 8, 8, 3, 21, 8, 40, 5]
CUT = {"top_p": 0.9, "top_k": 20}
PENALTIES = {"repetition_penalty": 1.2, "frequency_penalty": 0.5}
A, B, C, AB = (TOKENS.index(text) for text in (b"a", b"b", b"c", b"ab"))
HELD = {"min_tokens": 4, "stop_token_ids": (11, 12)}


def fields_of(**sampling) -> SamplingParameters:
    return SamplingParameters(
        epoch=1,
        stream=3,
        num_prompt=len(PROMPT),
        end_token_ids=(2, *sampling.get("stop_token_ids", ())),
        sampling=SamplingParams(**sampling),
    )


def expected(tokens, **sampling) -> SamplingState:
    fields = fields_of(**sampling)
    state = SamplingState(
        fields.sampling, seed=0, prompt_token_ids=PROMPT, end_token_ids=fields.end_token_ids
    )
    for token_id in tokens[len(PROMPT) :]:
        state.append(token_id)
    return state


def assert_same(found, wanted):
    assert found.params == wanted.params
    assert found.forbidden_ids == wanted.forbidden_ids
    if wanted.penalties is not None:
        seen = dict(zip(found.penalties.ids, found.penalties.counts, strict=True))
        assert seen == dict(zip(wanted.penalties.ids, wanted.penalties.counts, strict=True))


@pytest.mark.parametrize("sampling", [CUT, PENALTIES, HELD, CUT | PENALTIES | HELD], ids=str)
@pytest.mark.parametrize(
    "lengths", [[7, 9, 12, 14], [14, 8, 13, 7], [9, 9, 9], [6, 7, 9, 6, 8]], ids=str
)
def test_states_are_those_of_the_text_whatever_was_asked_before(sampling, lengths):
    """A context may be lost and come again: then the text is shorter than it was."""
    followed = StreamSampling.of(fields_of(**sampling), VOCAB)
    for length in lengths:
        for branch in ([8], [8, 33, 8]):
            branch = [PROMPT[-1], *branch] if length < len(PROMPT) else branch
            # What stands behind is in flight, and may be anything.
            known = [*TEXT[:length], 55, 56]
            found = followed.behind(known, length, branch)
            assert_same(found, expected([*TEXT[:length], *branch], **sampling))


def test_a_state_that_no_token_changes_is_shared():
    followed = StreamSampling.of(fields_of(**CUT), VOCAB)
    assert followed.behind(TEXT, 9, [1]) is followed.behind(TEXT, 9, [2, 3])
    penalised = StreamSampling.of(fields_of(**PENALTIES), VOCAB)
    assert penalised.behind(TEXT, 9, [1]) is not penalised.behind(TEXT, 9, [1])


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40])
@pytest.mark.parametrize("where", ["logit_bias", "stop_token_ids", "end_token_ids"])
def test_fields_that_name_no_tokens_are_refused(where, bad):
    fields = fields_of(logit_bias={1: 2.0}, stop_token_ids=(4,))
    assert StreamSampling.of(fields, VOCAB) is not None
    sampling = fields.sampling
    if where == "logit_bias":
        sampling = SamplingParams(logit_bias={1: 2.0, bad: 2.0})
    elif where == "stop_token_ids":
        sampling = SamplingParams(stop_token_ids=(4, bad))
    ends = (bad,) if where == "end_token_ids" else (2,)
    changed = SamplingParameters(
        epoch=1, stream=3, num_prompt=2, end_token_ids=ends, sampling=sampling
    )
    assert StreamSampling.of(changed, VOCAB) is None


def test_a_prompt_of_which_less_is_known_is_no_error():
    followed = StreamSampling.of(fields_of(**PENALTIES), VOCAB)
    state = followed.behind(TEXT[:3], 3, [])
    assert np.array_equal(state.penalties.ids, TEXT[:3])


def test_a_grammar_counts_once_it_is_compiled():
    """Whatever was asked before, a branch is where its own tokens lead."""
    letters = Grammar(GrammarKind.REGEX, "[ab]{2,4}")
    fields = msgspec.structs.replace(fields_of(), grammar=letters)
    compiled, pending = compiler().compile(letters).result(), Future()
    followed = StreamSampling(fields, pending)
    text = [*PROMPT, AB]
    assert followed.behind(text, len(text), [A]).grammar is None
    pending.set_result(compiled)
    for length, branch in ((8, [A]), (8, [AB]), (8, [C, A]), (7, [B]), (8, [B]), (6, [3, A])):
        state = followed.behind(text, length, branch)
        fresh = compiled.begin()
        for token_id in [*text[:length], *branch][len(PROMPT) :]:
            fresh.append(token_id)
        assert state.grammar is not None
        assert state.grammar.is_over == fresh.is_over
        found, expected = state.allowed(), fresh.allowed(())
        assert (found is None) == (expected is None) == (C in branch)
        assert found is None or found.tolist() == expected.tolist()
    assert StreamSampling.of(fields, VOCAB, None).behind(text, 8, [A]).grammar is None
