"""Sampling draws from `target_probs`, whatever else is in the batch."""

import itertools
import math
import random
from dataclasses import replace

import pytest
import torch

from specserve.sampling import sampling, truncation
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import NO_TOKEN, sample, target_probs
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams

FROZEN_TOKENS = [61, 0, 65, 43, 90, 86, 46, 84]


def state(seed=0, prompt=(1, 2, 3), output=(), sample_index=0, end=(), **fields):
    made = SamplingState(
        SamplingParams(**fields),
        seed=seed,
        prompt_token_ids=prompt,
        sample_index=sample_index,
        end_token_ids=end,
    )
    for token_id in output:
        made.append(token_id)
    return made


def random_state(rng, num_tokens):
    """Any mixture of fields, each off about half of the time."""

    def maybe(value, off):
        return value if rng.random() < 0.5 else off

    return state(
        seed=rng.getrandbits(64),
        prompt=[rng.randrange(num_tokens) for _ in range(rng.randint(1, 30))],
        output=[rng.randrange(num_tokens) for _ in range(rng.randint(0, 30))],
        sample_index=rng.randrange(4),
        end=maybe((0, 5), ()),
        temperature=rng.choice([0.0, 1e-3, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0]),
        top_k=maybe(rng.choice([1, 2, 5, 40, num_tokens + 9]), 0),
        top_p=maybe(rng.uniform(0.05, 0.99), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.5), 0.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        logit_bias=maybe({i: rng.uniform(-5, 5) for i in rng.sample(range(num_tokens), 4)}, {}),
        min_tokens=maybe(20, 0),
    )


def random_logits(num_rows, num_tokens, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, num_tokens, generator=generator, dtype=torch.float64)
    return (logits * 8).round().div(8).to(dtype)  # coarse, so that ties happen


def probs_and_tokens(logits, states):
    batch = SamplingBatch.build(states, logits.device)
    return target_probs(logits, batch), sample(logits, batch).token_ids


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("num_tokens", [64, 1003])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(num_tokens, device):
    rng = random.Random(num_tokens)
    states = [random_state(rng, num_tokens) for _ in range(192)]
    logits = random_logits(192, num_tokens).to(device)
    logits[17, 3] = float("nan")
    alone = [probs_and_tokens(logits[r : r + 1], [s]) for r, s in enumerate(states)]
    for batch_size in (8, 64):
        order = rng.sample(range(192), 192)
        for start in range(0, 192, batch_size):
            rows = order[start : start + batch_size]
            probs, token_ids = probs_and_tokens(logits[rows], [states[r] for r in rows])
            for place, r in enumerate(rows):
                assert torch.equal(probs[place].view(torch.int32), alone[r][0][0].view(torch.int32))
                assert token_ids[place] == alone[r][1][0]


@pytest.mark.parametrize("bins_per_unit", [64, 1, 1 / 64, 4096])
def test_thresholds_by_bins_have_the_bits_of_the_full_sort(bins_per_unit, monkeypatch):
    """However wide a bin is: with the whole row in the first, or nearly all of it in the last."""
    rng = random.Random(5)
    states = [
        state(
            seed=r,
            temperature=rng.choice([0.02, 0.7, 1.5]),
            top_p=rng.choice([1.0, 0.3, rng.uniform(0.1, 0.999), 1 - 1e-12]),
            top_k=rng.choice([0, 30, 300, 600]),
        )
        for r in range(96)
    ]
    logits = random_logits(96, 500)
    logits[::3] = logits[::3].mul(2).round() / 2  # many ties
    logits[5, 20:] = -torch.inf
    batch = SamplingBatch.build(states)
    monkeypatch.setattr(truncation, "_BINS_PER_UNIT", bins_per_unit)
    found = target_probs(logits, batch)
    monkeypatch.setattr(truncation, "_threshold_by_bins", truncation._threshold_by_sort)
    assert torch.equal(target_probs(logits, batch), found)


def test_a_captured_truncation_has_the_bits_of_one_that_may_wait():
    rng = random.Random(6)
    states = [state(seed=r, top_p=rng.uniform(0.1, 0.999), top_k=r % 7 * 50) for r in range(64)]
    logits = random_logits(64, 500)
    batch = SamplingBatch.build(states)
    captured = replace(batch, truncation=replace(batch.truncation, may_wait=False))
    assert torch.equal(target_probs(logits, captured), target_probs(logits, batch))
    assert torch.equal(sample(logits, captured).token_ids, sample(logits, batch).token_ids)


def expected_distribution(logits, s, num_tokens):
    """The definition once more, in scalar float64 arithmetic."""
    p = s.params
    x = list(logits)
    counts = (
        {}
        if s.penalties is None
        else dict(zip(s.penalties.ids.tolist(), s.penalties.counts.tolist(), strict=True))
    )
    for i, count in counts.items():
        x[i] = x[i] / p.repetition_penalty if x[i] > 0 else x[i] * p.repetition_penalty
        x[i] -= p.frequency_penalty * count + (p.presence_penalty if count else 0)
    for i, bias in p.logit_bias.items():
        x[i] += bias
    for i in s.forbidden_ids:
        x[i] = -math.inf
    if (bits := s.allowed()) is not None:
        x = [v if bits[i // 8] >> (i % 8) & 1 else -math.inf for i, v in enumerate(x)]
    if p.temperature == 0:
        winner = x.index(max(x))
        return [float(i == winner) for i in range(num_tokens)]
    z = [(v - max(x)) / p.temperature for v in x]
    kept = set(range(num_tokens))
    if p.top_k:
        threshold = sorted(z, reverse=True)[min(p.top_k, num_tokens) - 1]
        kept = {i for i in kept if z[i] >= threshold}
    if p.top_p < 1:
        needed = p.top_p * sum(math.exp(z[i]) for i in kept)
        held = 0.0
        for i in sorted(kept, key=lambda i: -z[i]):
            held += math.exp(z[i])
            threshold = z[i]
            if held >= needed:
                break
        kept = {i for i in kept if z[i] >= threshold}
    kept = {i for i in kept if math.exp(z[i]) >= p.min_p}
    total = sum(math.exp(z[i]) for i in kept)
    return [math.exp(z[i]) / total if i in kept else 0.0 for i in range(num_tokens)]


FEW = pytest.mark.parametrize("few", [True, False], ids=["likeliest", "all"])


def look_at(monkeypatch, few):
    """The likeliest tokens alone where they do, or always at all of them."""
    if not few:
        monkeypatch.setattr(sampling, "can_be_few", lambda _: False)


def test_the_likeliest_tokens_are_enough_wherever_they_are_taken_for_all(monkeypatch):
    """Whatever ties where, and whichever rows stand together: the tokens of a look at all."""
    rng, generator = random.Random(7), torch.Generator().manual_seed(7)
    monkeypatch.setattr(truncation, "_NUM_LIKELIEST", 24)
    num_few = 0
    for _ in range(200):
        states = [
            state(
                seed=rng.randrange(99),
                temperature=rng.choice([0.3, 1.0, 1.7]),
                top_k=rng.choice([0, 1, 3, 20, 150]),
                top_p=rng.choice([1.0, 0.05, 0.6, 0.95, 0.999]),
                min_p=rng.choice([0.0, 0.0, 0.2]),
            )
            for _ in range(rng.randint(1, 4))
        ]
        logits = torch.randn(len(states), 200, generator=generator) * rng.choice([1, 4])
        logits = (logits * 2).round() / 2 if rng.random() < 0.5 else logits
        batch = SamplingBatch.build(states)
        num_few += sampling._can_be_few(batch) and sampling._likeliest_tokens(logits, batch).are_all
        found = sample(logits, batch).token_ids, target_probs(logits, batch)
        with monkeypatch.context() as patch:
            look_at(patch, few=False)
            expected = sample(logits, batch).token_ids, target_probs(logits, batch)
        assert all(map(torch.equal, found, expected))
    assert 40 < num_few < 180


@FEW
def test_float64_probs_equal_the_definition(few, monkeypatch):
    look_at(monkeypatch, few)
    rng = random.Random(2)
    num_tokens = 50
    states = [random_state(rng, num_tokens) for _ in range(300)]
    logits = random_logits(300, num_tokens, seed=3, dtype=torch.float64)
    probs = target_probs(logits, SamplingBatch.build(states))
    assert probs.dtype == torch.float64
    for r, s in enumerate(states):
        assert probs[r].tolist() == pytest.approx(
            expected_distribution(logits[r].tolist(), s, num_tokens), abs=1e-12
        )


def test_float32_probs_follow_the_float64_ones_and_sum_to_one():
    rng = random.Random(4)
    # Near-equal scores may fall on either side of a threshold, so truncation stays off here.
    states = [state(seed=r, temperature=rng.uniform(0.2, 3)) for r in range(50)]
    logits = random_logits(50, 4096, dtype=torch.float64)
    batch = SamplingBatch.build(states)
    single, double = target_probs(logits.float(), batch), target_probs(logits, batch)
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), double, rtol=1e-5, atol=1e-12)
    assert torch.allclose(single.double().sum(dim=1), torch.ones(50).double(), atol=1e-6)


def test_greedy_takes_the_lowest_id_among_the_largest():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    batch = SamplingBatch.build([state(temperature=0)])
    assert sample(logits, batch).token_ids.tolist() == [1]
    assert target_probs(logits, batch).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@FEW
def test_tokens_that_tie_at_a_threshold_stay_together(few, monkeypatch):
    look_at(monkeypatch, few)
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    for fields in ({"top_k": 2}, {"top_p": 0.6}):
        probs = target_probs(logits, SamplingBatch.build([state(**fields)]))[0]
        assert (probs > 0).tolist() == [True, True, True, False]
        assert probs[1] == probs[2]


def test_a_bad_row_is_marked_and_disturbs_nobody():
    logits = random_logits(6, 32)
    states = [state(seed=r, temperature=t) for r, t in enumerate((0, 1, 1, 0, 1, 1))]
    states[5] = state(seed=5, top_p=0.5)
    good = sample(logits, SamplingBatch.build(states))
    assert not good.bad_rows.any()
    broken = logits.clone()
    broken[0, 9] = float("nan")
    broken[2, 1] = float("inf")
    broken[5] = float("-inf")
    batch = SamplingBatch.build(states)
    found = sample(broken, batch)
    assert found.bad_rows.tolist() == [True, False, True, False, False, True]
    for r in range(6):
        expected = NO_TOKEN if found.bad_rows[r] else good.token_ids[r]
        assert found.token_ids[r] == expected
    assert target_probs(broken, batch).isnan().all(dim=1).tolist() == found.bad_rows.tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_p": 0.9, "top_k": 5}, {"top_k": 300}])
def test_a_bad_row_that_truncates_is_marked_when_it_is_alone(bad, fields):
    logits = random_logits(1, 600)
    logits[0, :3] = bad
    if bad < 0:
        logits[:] = bad
    for num_rows in (1, 2):
        batch = SamplingBatch.build([state(**fields)] * num_rows)
        assert sample(logits.repeat(num_rows, 1), batch).token_ids.tolist() == [NO_TOKEN] * num_rows


def test_a_nan_under_a_forbidden_token_is_still_noticed():
    logits = torch.zeros(1, 4)
    logits[0, 2] = float("nan")
    held_back = state(end=(2,), min_tokens=5)
    assert sample(logits, SamplingBatch.build([held_back])).bad_rows.tolist() == [True]


def test_impossible_logits_of_the_model_are_never_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0]]).expand(200, -1).contiguous()
    batch = SamplingBatch.build([state(seed=r, temperature=5.0) for r in range(200)])
    assert set(sample(logits, batch).token_ids.tolist()) == {1, 3}


def test_sampling_leaves_the_logits_alone():
    rng = random.Random(11)
    logits = random_logits(40, 64)
    before = logits.clone()
    probs_and_tokens(logits, [random_state(rng, 64) for _ in range(40)])
    assert torch.equal(logits, before)


def test_end_tokens_are_held_back_until_min_tokens():
    logits = torch.tensor([[9.0, 1.0, 0.0, 8.0]])
    s = state(end=(0,), stop_token_ids=(3,), temperature=0, min_tokens=2)
    drawn = []
    for _ in range(3):
        token_id = int(sample(logits, SamplingBatch.build([s])).token_ids)
        s.append(token_id)
        drawn.append(token_id)
    assert drawn == [1, 1, 0]


def test_rows_of_a_drafted_path_match_decoding_it_token_by_token():
    fields = {"frequency_penalty": 1.0, "repetition_penalty": 1.3, "min_tokens": 3}
    logits = random_logits(5, 16, seed=6)
    path = [4, 4, 9, 1]
    stepwise = state(seed=6, end=(2,), **fields)
    verified = SamplingBatch.build(stepwise.fork().along(path))
    together = target_probs(logits, verified)
    tokens = sample(logits, verified).token_ids
    for r, token_id in enumerate([*path, None]):
        probs, alone = probs_and_tokens(logits[r : r + 1], [stepwise])
        assert torch.equal(probs[0], together[r])
        assert alone[0] == tokens[r]
        if token_id is not None:
            stepwise.append(token_id)


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 100.0])
def test_extreme_temperatures_stay_sound(temperature):
    logits = random_logits(3, 32)
    probs, tokens = probs_and_tokens(
        logits, [state(seed=r, temperature=temperature) for r in range(3)]
    )
    assert torch.allclose(probs.sum(dim=1), torch.ones(3))
    assert all(probs[r, token] > 0 for r, token in enumerate(tokens.tolist()))


def test_the_token_of_a_seed_never_changes():
    """Frozen: a change here breaks every promise of reproducibility across versions."""
    grid = itertools.product((0, 2**64 - 1), (0, 1), (3, 1000))
    states = []
    for seed, sample_index, position in grid:
        s = state(seed=seed, sample_index=sample_index)
        s.position = position
        states.append(s)
    logits = torch.linspace(-1, 1, 100).expand(8, -1).contiguous()
    assert sample(logits, SamplingBatch.build(states)).token_ids.tolist() == FROZEN_TOKENS
