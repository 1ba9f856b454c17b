"""An answer that would take gigabytes is refused by arithmetic on its request."""

import pytest

from specserve.api.call import GenerateCall
from specserve.api.http.answer_size import MAX_OF_ANSWER, require_answer_size
from specserve.errors import InvalidField
from specserve.types import SamplingParams
from specserve.validation import Limits

LIMITS = Limits(vocab_size=400, max_model_len=131_072)
# (prompts, tokens of each, prompt_logprobs, n, max_tokens, logprobs), whole and streamed answers'
LARGE = {
    "prompts": ((256, 1000, 20, 1, 16, None), True, True),
    "prompts with one each": ((40, 100_001, 0, 1, 16, None), True, True),
    "samples": ((1, 5, None, 64, 4000, 20), True, False),
    "prompts and samples": ((10, 10_000, 20, 2, 5000, 20), True, False),
    "a context by itself": ((1, 5, None, 1, 131_072, 20), False, False),
    "samples without": ((256, 5, None, 64, 131_072, None), False, False),
    "samples beyond the context": ((1, 5, None, 1, 10**12, 20), False, False),
    "what is refused for itself": ((1, 5, 10**9, -5, -7, 10**9), False, False),
}


def calls(num: int, length: int, prompt_logprobs, n: int, max_tokens: int, logprobs):
    sampling = SamplingParams(
        prompt_logprobs=prompt_logprobs, n=n, max_tokens=max_tokens, logprobs=logprobs
    )
    return [GenerateCall(prompt=[5] * length, sampling=sampling)] * num


def is_refused(asked, *, is_whole: bool) -> bool:
    try:
        require_answer_size(asked, LIMITS, is_whole=is_whole)
    except InvalidField:
        return True
    return False


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_told_by_the_request(name):
    asked, whole, streamed = LARGE[name]
    assert is_refused(calls(*asked), is_whole=True) == whole
    assert is_refused(calls(*asked), is_whole=False) == streamed


def test_the_limit_is_where_it_is_said_to_be():
    at = calls(1, 5, 19, 1, MAX_OF_ANSWER // 40, 19)  # 100 of the prompt
    assert is_refused(at, is_whole=True) is False
    assert is_refused(at * 2, is_whole=True) is True
    exact = calls(40, 5000, 19, 1, 1, None)
    assert is_refused(exact, is_whole=True) is False
    assert is_refused([*exact, *calls(1, 1, 0, 1, 1, None)], is_whole=True) is True


@pytest.mark.parametrize(
    ("path", "body", "number"),
    [
        ("/v1/completions", {"prompt": ["the"] * 10, "logprobs": 20}, 10 * 64 * 512 * 21),
        (
            "/v1/completions",
            {"prompt": [[5, 6]] * 10, "logprobs": 20, "echo": True},
            10 * (64 * 512 * 21 + 2 * 21),
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 20},
            None,
        ),
    ],
)
def test_a_service_says_what_to_do(path, body, number, ask, rig):
    """A chat has one prompt, which here is never too much."""
    answer = ask("POST", path, body | {"n": 64, "max_tokens": 10**6})
    if number is None:
        assert answer.status == 200
        return
    error = answer.body["error"]
    assert (answer.status, error["param"]) == (400, "logprobs")
    for words in (f" {number} ", str(MAX_OF_ANSWER), "stream", "max_tokens", "fewer prompts"):
        assert words in error["message"]
    assert not rig.target.messages
    streamed = ask("POST", path, body | {"stream": True, "max_tokens": 3})
    assert streamed.status == 200


def test_what_prompts_alone_make_too_large_is_not_to_be_streamed():
    with pytest.raises(InvalidField, match="send fewer prompts at once") as caught:
        require_answer_size(calls(*LARGE["prompts"][0]), LIMITS, is_whole=True)
    assert caught.value.field == "prompt_logprobs"
    assert "stream" not in str(caught.value)


def test_prompts_of_texts_count_by_their_tokens(ask, monkeypatch):
    body = {"prompt": ["the quick"] * 3, "prompt_logprobs": 1, "max_tokens": 1}
    found = ask("POST", "/v1/completions", body)
    num_told = sum(len(choice["prompt_logprobs"]) for choice in found.body["choices"])
    name = "specserve.api.http.answer_size.MAX_OF_ANSWER"
    monkeypatch.setattr(name, 2 * num_told)
    assert ask("POST", "/v1/completions", body).status == 200
    monkeypatch.setattr(name, 2 * num_told - 1)
    assert f" {2 * num_told} " in ask("POST", "/v1/completions", body).body["error"]["message"]
