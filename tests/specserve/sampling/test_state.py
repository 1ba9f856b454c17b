"""Sampling state follows its sample's tokens and copies cleanly."""

import random
from collections import Counter

import numpy as np
import pytest

from specserve.sampling.state import PenaltyState, SamplingState
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


def test_forks_of_forks_count_as_a_state_of_their_own_would():
    """Whatever their origin goes on to see, grow to and fork again meanwhile."""
    rng = random.Random(1)
    prompt = [rng.randrange(80) for _ in range(30)]
    origin, seen = PenaltyState(prompt), []
    forks: list[tuple[PenaltyState, list[int]]] = []
    for _ in range(900):
        if rng.random() < 0.2:
            fork, before = rng.choice([(origin, seen), *forks[-4:]])
            forks.append((fork.fork(), list(before)))
        state, output = rng.choice([(origin, seen), *forks[-6:]])
        output.append(rng.randrange(400))
        state.append(output[-1])
    for state, output in [(origin, seen), *forks]:
        own = PenaltyState(prompt)
        for token_id in output:
            own.append(token_id)
        assert state.ids.tolist() == own.ids.tolist()
        assert state.counts.tolist() == own.counts.tolist()
    assert len(origin.ids) > 94  # it grew beyond its first room


def test_a_path_copies_nothing_of_what_was_seen():
    prompt = list(range(5000))
    params = SamplingParams(repetition_penalty=1.1)
    state = SamplingState(params, seed=0, prompt_token_ids=prompt)
    *_, last = state.along([3, 4, 5])
    assert last.penalties is not None
    assert state.penalties is not None
    assert np.shares_memory(last.penalties.ids, state.penalties.ids)
    assert last.penalties.counts[3:6].tolist() == [1, 1, 1]
    assert state.penalties.counts.sum() == 0


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
