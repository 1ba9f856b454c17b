"""The OpenAI-compatible API of real processes, asked by OpenAI's own client."""

import re
from collections.abc import Iterator

import pytest
from openai import OpenAI

from specserve.api.call import SpecOptions
from specserve.client import Client
from specserve.types import TokenOrigin
from tests.service.chaos import end
from tests.service.launched import Launched

PROMPT = "def main():\n    "


@pytest.fixture(scope="module")
def service() -> Iterator[Launched]:
    launched = Launched("--speculation", "sync", "--set", "speculation.min_survival=0")
    try:
        launched.address()
        yield launched
    finally:
        end(launched)


def url_of(launched: Launched) -> str:
    launched.address()
    match = re.search(r"OpenAI-compatible API at (\S+)", launched.output)
    assert match, launched.output
    return match[1]


@pytest.fixture
def client(service: Launched) -> Iterator[OpenAI]:
    with OpenAI(base_url=url_of(service), api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.slow
def test_text_is_that_of_the_other_api(service: Launched, client: OpenAI):
    model = client.models.list().data[0].id
    fields = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    whole = client.completions.create(model=model, **fields)
    streamed = client.completions.create(model=model, stream=True, **fields)
    text = "".join(choice.text for chunk in streamed for choice in chunk.choices)
    with Client(service.address()) as other:
        same = other.generate(PROMPT, max_tokens=40, temperature=0)
    assert whole.choices[0].text == text == same.text


@pytest.mark.slow
def test_a_seed_is_a_seed_in_both(service: Launched, client: OpenAI):
    model = client.models.list().data[0].id
    found = client.completions.create(model=model, prompt=PROMPT, max_tokens=30, seed=7)
    with Client(service.address()) as other:
        same = other.generate(PROMPT, max_tokens=30, seed=7)
    assert found.choices[0].text == same.text


@pytest.mark.slow
def test_log_probabilities_are_those_of_the_other_api(service: Launched, client: OpenAI):
    model = client.models.list().data[0].id
    fields = {"max_tokens": 12, "temperature": 0, "logprobs": 3}
    found = client.completions.create(model=model, prompt=PROMPT, **fields).choices[0].logprobs
    with Client(service.address()) as other:
        (sample,) = other.generate(PROMPT, **fields).samples
    assert found.token_logprobs == [each.logprob for each in sample.logprobs]
    assert all(len(top) >= 3 for top in found.top_logprobs)


@pytest.mark.slow
def test_an_echo_has_the_prompts_log_probabilities(client: OpenAI):
    model = client.models.list().data[0].id
    found = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=3, temperature=0, logprobs=1, echo=True
    )
    (choice,) = found.choices
    assert choice.text.startswith(PROMPT)
    num_tokens = found.usage.prompt_tokens + found.usage.completion_tokens
    assert len(choice.logprobs.token_logprobs) == num_tokens
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in choice.logprobs.token_logprobs[1:])


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
def test_what_speculation_did_is_said_as_aiperf_reads_it(client: OpenAI, streams: bool):
    model = client.models.list().data[0].id
    fields = {"model": model, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    fields |= {"extra_body": {"ignore_eos": True}}
    if streams:
        options = {"include_usage": True}
        *_, last = client.completions.create(stream=True, stream_options=options, **fields)
    else:
        last = client.completions.create(**fields)
    told = last.model_extra["metrics"]["speculative_decoding"]
    assert len(told["acceptance_histogram"]) == told["num_spec_tokens"] + 1
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"] > 0
    assert told["num_accepted_draft_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("at", [4, 23])
def test_accepted_tokens_are_those_that_were_sent_whatever_stopped_it(
    service: Launched, client: OpenAI, at: int
):
    """A stop string is found behind the target's back, which may be rounds ahead by then."""
    asked = {"temperature": 0, "ignore_eos": True}
    with Client(service.address()) as other:
        text = other.generate(PROMPT, max_tokens=40, **asked).text
        asked |= {"max_tokens": 400, "stop": [text[2 * at : 2 * at + 6]]}
        found = other.generate(PROMPT, spec=SpecOptions(return_stats=True), **asked)
    (sample,) = found.samples
    num_drafted = sample.origins.count(TokenOrigin.DRAFTED)
    assert (sample.finish_reason, found.usage.num_generated_tokens < 40) == ("stop", True)
    assert found.spec.num_accepted_tokens == num_drafted > 0
    assert sum(found.spec.num_accepted_tokens_per_pos) == num_drafted
    model = client.models.list().data[0].id
    same = client.completions.create(model=model, prompt=PROMPT, extra_body=asked)
    told = same.model_extra["metrics"]["speculative_decoding"]
    assert told["num_accepted_draft_tokens"] == num_drafted
    assert sum(n * steps for n, steps in enumerate(told["acceptance_histogram"])) == num_drafted


@pytest.mark.slow
def test_the_usual_port_is_told_and_none_is_bound_where_none_is_wanted():
    launched = Launched("--no-http", "--speculation", "off")
    try:
        launched.address()
        assert "OpenAI" not in launched.output
    finally:
        end(launched)
