"""Cases 1 to 5: ends of an answer inside an accepted run, and what is counted of one."""

from itertools import accumulate

import pytest

from specserve.api.call import SpecOptions
from tests.cases.apis import GRPC, HTTP, Answer, Service, ask, ask_plainly, refusal
from tests.cases.parts import case, some
from tests.cases.serving import SYNC

PROMPT = "def main():\n    "  # the greedy answer has 13 tokens that appear once before they repeat
LOOP = "import os\nimport"  # what follows is drafted rightly again and again
GREEDY = {"temperature": 0, "ignore_eos": True}


def greedy_run(service: Service) -> Answer:
    """64 tokens without drafts and without an end."""
    return ask_plainly(service, PROMPT, **GREEDY, max_tokens=64, logprobs=2)


def first_appearances(token_ids: tuple[int, ...], limit: int = 13) -> list[int]:
    """Places of tokens that were not there before."""
    return [j for j in range(limit) if token_ids[j] not in token_ids[:j]]


def assert_same(api: str, answer: Answer, plain: Answer) -> None:
    assert answer == plain
    if api == GRPC:
        assert answer.only.entries == plain.only.entries
        assert len(answer.only.origins) == len(answer.only.token_ids)


@pytest.mark.slow
@case(1)
def test_nothing_is_kept_behind_an_accepted_stop_token(api: str, service: Service):
    run = greedy_run(service).only
    num_drafted = num_accepted = 0
    for j in some(first_appearances(run.token_ids), 6):
        fields = {**GREEDY, "max_tokens": 64, "stop_token_ids": [run.token_ids[j]], "logprobs": 2}
        answer = ask(api, service, PROMPT, **fields)
        found = answer.only
        assert found.token_ids == run.token_ids[: j + 1]
        assert found.logprobs == run.logprobs[: j + 1]
        assert found.text == "".join(e.token_bytes.decode() for e in run.entries[:j])
        assert (found.finish_reason, found.stop) == ("stop", run.token_ids[j])
        assert answer.num_generated_tokens == j + 1
        assert_same(api, answer, ask_plainly(service, PROMPT, **fields))
        num_drafted += found.num_drafted
        num_accepted += answer.num_accepted
    assert num_accepted > 3
    assert num_drafted > 3 or api == HTTP


@pytest.mark.slow
@case(1)
def test_a_stop_string_may_begin_and_end_inside_tokens_of_one_round(api: str, service: Service):
    run = greedy_run(service).only
    pieces = [entry.token_bytes.decode() for entry in run.entries]
    ends = list(accumulate(map(len, pieces)))
    num_tried = 0
    for j in some(range(12), 7):
        start = ends[j] - len(pieces[j]) + len(pieces[j]) // 2
        stop = run.text[start : ends[j + 1] + (len(pieces[j + 2]) + 1) // 2]
        if run.text.find(stop) != start:
            continue  # it is there before
        num_tried += 1
        fields = {**GREEDY, "max_tokens": 64, "stop": [stop], "logprobs": 2}
        answer = ask(api, service, PROMPT, **fields)
        assert answer.only.text == run.text[:start]
        assert answer.only.token_ids == run.token_ids[: j + 3]
        assert answer.only.logprobs == run.logprobs[: j + 3]
        assert (answer.only.finish_reason, answer.only.stop) == ("stop", stop)
        assert answer.num_generated_tokens == j + 3
        assert_same(api, answer, ask_plainly(service, PROMPT, **fields))
    assert num_tried > 4


@pytest.mark.slow
@case(2)
def test_a_stop_at_the_budget_is_a_stop_and_one_behind_it_is_not(api: str, service: Service):
    run = greedy_run(service).only
    for j in some(first_appearances(run.token_ids)[1:], 5):
        for max_tokens, expected in (
            (j, ("length", None)),
            (j + 1, ("stop", run.token_ids[j])),
            (j + 2, ("stop", run.token_ids[j])),
        ):
            stops = {"max_tokens": max_tokens, "stop_token_ids": [run.token_ids[j]]}
            answer = ask(api, service, PROMPT, **GREEDY, **stops)
            assert (answer.only.finish_reason, answer.only.stop) == expected
            assert answer.only.token_ids == run.token_ids[: min(max_tokens, j + 1)]


@pytest.mark.slow
@case(3)
def test_drafted_tokens_do_not_eat_the_budget(api: str, service: Service):
    gamma = service.client.spec_config().gamma
    num_accepted = 0
    for max_tokens in (1, 2, gamma, gamma + 1, gamma + 2, 128):
        answer = ask(api, service, LOOP, **GREEDY, max_tokens=max_tokens)
        assert answer.num_generated_tokens == len(answer.only.token_ids) == max_tokens
        assert (answer.only.finish_reason, answer.only.stop) == ("length", None)
        assert answer == ask_plainly(service, LOOP, **GREEDY, max_tokens=max_tokens)
        num_accepted += answer.num_accepted
    assert num_accepted > 20


@pytest.mark.slow
@case(3)
def test_a_budget_beyond_the_context_is_what_the_prompt_leaves_of_it(api: str, service: Service):
    """As docs/running.md has it: clamped, told as "length", and counted as it was."""
    longest, room = service.client.model_info().max_model_len, 20
    prompt = [5 + place % 50 for place in range(longest - room)]
    for max_tokens in (room - 1, room, room + 1, 100 * longest):
        answer = ask(api, service, prompt, **GREEDY, max_tokens=max_tokens)
        made = min(max_tokens, room)
        assert (answer.only.finish_reason, answer.only.stop) == ("length", None)
        assert len(answer.only.token_ids) == answer.num_generated_tokens == made
        assert answer.num_prompt_tokens == longest - room
    assert answer == ask_plainly(service, prompt, **GREEDY, max_tokens=room)
    assert "which leaves 1 of max_model_len" in refusal(api, service, [5] * longest, **GREEDY)


@pytest.mark.slow
@case(4, apis=[GRPC])
def test_what_is_counted_as_accepted_was_emitted(api: str, service: Service):
    """Of answers that a token or the budget ends; those of stop strings are another test's."""
    run = greedy_run(service).only
    ends = [{"stop_token_ids": [run.token_ids[j]]} for j in first_appearances(run.token_ids)]
    num_accepted = 0
    for fields in [*ends, {"max_tokens": 9}, {"max_tokens": 64}]:
        answer = ask(api, service, PROMPT, **GREEDY, **fields)
        record = answer.completion.spec
        assert answer.only.num_drafted == record.num_accepted_tokens
        assert sum(record.num_accepted_tokens_per_pos) == record.num_accepted_tokens
        assert record.num_accepted_tokens <= answer.num_generated_tokens
        num_accepted += record.num_accepted_tokens
    assert num_accepted > 20


# Soon the likeliest token by far, and never the answer to the first of these prompts alone.
EARLY_EOS = {"temperature": 0, "logit_bias": {0: 9.0}}


@pytest.mark.slow
@case(5)
def test_nothing_ends_an_answer_before_its_minimum(api: str, service: Service):
    plain = ask_plainly(service, LOOP, **EARLY_EOS, max_tokens=64)
    length, gamma = plain.num_generated_tokens, service.client.spec_config().gamma
    assert plain.only.finish_reason == "stop"
    whole = ask_plainly(service, LOOP, **EARLY_EOS, max_tokens=64, ignore_eos=True).only
    for stops in ({}, {"stop": [" os"]}, {"stop_token_ids": [whole.token_ids[0]]}):
        for min_tokens in some(range(length + 1, length + gamma + 3), 3):
            fields = {**EARLY_EOS, **stops, "max_tokens": 40, "min_tokens": min_tokens}
            answer = ask(api, service, LOOP, **fields, logprobs=1)
            assert answer.num_generated_tokens >= min_tokens
            assert answer == ask_plainly(service, LOOP, **fields, logprobs=1)


@case(5)
def test_a_minimum_that_cannot_be_kept_is_refused_by_name(api: str, service: Service):
    assert refusal(api, service, PROMPT, min_tokens=9, max_tokens=8).startswith("min_tokens: 9 ")
    beyond = {"min_tokens": 10**6, "max_tokens": 10**6}
    assert refusal(api, service, PROMPT, **beyond).startswith("min_tokens: 1000000 ")


@pytest.mark.slow
@case(5, apis=[GRPC], regimes=[SYNC])
def test_an_end_behind_the_minimum_is_drafted_and_accepted(api: str, service: Service):
    """Else the tests above would not have met what they look for."""
    fields = {**EARLY_EOS, "min_tokens": 20, "max_tokens": 40}
    answer = ask(api, service, LOOP, **fields, spec=SpecOptions(return_stats=True))
    assert answer.only.num_drafted > 5
