"""Sampling state follows its sample's tokens and copies cleanly."""

import random
from collections import Counter

import pytest

from specserve.decoding.state import PenaltyState, SamplingState
from specserve.types import SamplingParams


def test_penalty_state_counts_what_was_generated_and_remembers_what_was_seen():
    rng = random.Random(0)
    prompt = [rng.randrange(500) for _ in range(100)]
    output = [rng.randrange(500) for _ in range(1000)]
    penalties = PenaltyState(prompt)
    for token_id in output:
        penalties.append(token_id)
    counts = Counter(output)
    found = dict(zip(penalties.ids.tolist(), penalties.counts.tolist(), strict=True))
    assert len(found) == len(penalties.ids)
    assert found == {token_id: counts[token_id] for token_id in {*prompt, *output}}


def test_a_fork_and_its_origin_go_separate_ways():
    origin = SamplingState(SamplingParams(frequency_penalty=1.0), seed=1, prompt_token_ids=[1, 2])
    origin.append(7)
    fork = origin.fork()
    fork.append(8)
    origin.append(7)
    assert (origin.position, fork.position) == (4, 4)
    assert origin.penalties is not None
    assert fork.penalties is not None
    assert origin.penalties.ids.tolist() == [7]
    assert origin.penalties.counts.tolist() == [2]
    assert fork.penalties.ids.tolist() == [7, 8]
    assert fork.penalties.counts.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({}, None),
        ({"presence_penalty": 0.1}, [5]),
        ({"frequency_penalty": -0.1}, [5]),
        ({"repetition_penalty": 1.1}, [1, 2, 5]),
    ],
)
def test_history_is_kept_only_as_far_as_a_penalty_reads_it(fields, ids):
    state = SamplingState(SamplingParams(**fields), seed=0, prompt_token_ids=[1, 2, 1])
    state.append(5)
    assert (None if state.penalties is None else state.penalties.ids.tolist()) == ids


def test_a_path_has_one_state_more_than_tokens():
    state = SamplingState(SamplingParams(), seed=0, prompt_token_ids=[1, 2])
    assert [s.position for s in state.along([4, 5, 6])] == [2, 3, 4, 5]
    assert state.num_generated == 0
