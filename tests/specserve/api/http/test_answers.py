"""Counts and log probabilities in the shapes that clients read."""

import pytest

from specserve.api.events import SpecRecord, Usage
from specserve.api.http.answers import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
    speculation_of,
    usage_of,
)
from specserve.types import Logprobs


def position(token: bytes, logprob: float, top: dict[bytes, float]) -> Logprobs:
    return Logprobs(
        token_id=1,
        logprob=logprob,
        rank=1,
        top_ids=[2] * len(top),
        top_logprobs=list(top.values()),
        token_bytes=token,
        top_bytes=list(top),
    )


def test_the_histogram_counts_rounds_by_what_stood():
    """Of ten rounds the first token stood in seven, the second in four, the third in none."""
    record = SpecRecord(
        num_drafts=10,
        num_draft_tokens=30,
        num_accepted_tokens=11,
        num_accepted_tokens_per_pos=[7, 4, 0],
    )
    found = speculation_of(record, gamma=5)
    assert found is not None
    assert found["acceptance_histogram"] == [3, 3, 4, 0, 0, 0]
    assert found["num_spec_tokens"] == 5
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"] == 10
    weighed = sum(n * count for n, count in enumerate(found["acceptance_histogram"]))
    assert weighed == found["num_accepted_draft_tokens"] == 11
    assert found["mean_acceptance_length"] == pytest.approx(2.1)
    assert found["draft_acceptance_rate"] == pytest.approx(11 / 30)


def test_blocks_longer_than_gamma_are_counted_as_well():
    record = SpecRecord(
        num_drafts=2,
        num_draft_tokens=6,
        num_accepted_tokens=3,
        num_accepted_tokens_per_pos=[1, 1, 1],
    )
    found = speculation_of(record, gamma=1)
    assert found is not None
    assert found["acceptance_histogram"] == [1, 0, 0, 1]


def test_without_drafts_there_is_nothing_to_tell():
    assert speculation_of(SpecRecord(), gamma=5) is None


def test_usage_is_of_all_prompts_together():
    one = Usage(num_prompt_tokens=5, num_cached_tokens=3, num_generated_tokens=7)
    assert usage_of([one, one]) == {
        "prompt_tokens": 10,
        "completion_tokens": 14,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 6},
    }


def test_a_token_that_ends_inside_a_character_has_its_bytes():
    fox = "🦊".encode()
    (entry,) = chat_logprobs([position(fox[:2], -0.5, {b"a": -1.0})])["content"]
    assert entry["bytes"] == list(fox[:2])
    assert entry["token"] == "\N{REPLACEMENT CHARACTER}"
    assert entry["top_logprobs"] == [{"token": "a", "logprob": -1.0, "bytes": [97]}]


def test_a_completions_offsets_are_those_of_its_text():
    found = completion_logprobs([None, position(b"ab", -0.5, {b"x": -1.0})], 7)
    assert found["tokens"] == ["", "ab"]
    assert found["token_logprobs"] == [None, -0.5]
    assert found["top_logprobs"] == [None, {"ab": -0.5, "x": -1.0}]
    assert found["text_offset"] == [7, 7]


def test_a_prompts_log_probabilities_are_by_token_id_the_prompts_own_first():
    asked = Logprobs(
        token_id=7,
        logprob=-3.0,
        rank=9,
        top_ids=[2, 3],
        top_logprobs=[-0.5, -1.0],
        token_bytes=b"seven",
        top_bytes=[b"two", b"three"],
    )
    first, found = prompt_logprobs([asked])
    assert first is None
    assert found == {
        "7": {"logprob": -3.0, "rank": 9, "decoded_token": "seven"},
        "2": {"logprob": -0.5, "rank": 1, "decoded_token": "two"},
        "3": {"logprob": -1.0, "rank": 2, "decoded_token": "three"},
    }
    assert list(found) == ["7", "2", "3"]
