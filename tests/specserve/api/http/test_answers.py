"""Counts and log probabilities in the shapes that clients read."""

import pytest

from specserve.api.events import SpecRecord, TokenDelta, Usage
from specserve.api.http.answers import (
    Gathered,
    chat_logprobs,
    speculation_of,
    usage_of,
)
from specserve.types import Logprobs, TokenOrigin


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


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_stream_has_sent_is_counted_and_not_kept(keeps: bool):
    gathered = Gathered(1, 2, keeps_tokens=keeps)
    for index in (0, 1, 1):
        gathered.add_delta(
            0,
            TokenDelta(
                sample_index=index,
                token_ids=[5, 6],
                text="fox",
                origins=[TokenOrigin.PLAIN] * 2,
                logprobs=[position(b"fox", -0.5, {}), position(b"", -0.5, {})],
            ),
        )
    assert gathered.usage["completion_tokens"] == 6
    found = [(each.text, len(each.token_ids), len(each.logprobs)) for each in gathered.samples]
    assert found == ([("fox", 2, 2), ("foxfox", 4, 4)] if keeps else [("", 0, 0)] * 2)


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
