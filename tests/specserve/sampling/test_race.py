"""The compiled race against its definition."""

import numpy as np
import pytest
import torch

from specserve.backends.cpu import compiled, noise_kernel
from specserve.noise import Purpose, exponential_noise
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import sample
from tests.specserve.sampling.test_sampling import state

pytestmark = pytest.mark.skipif(compiled.numba is None, reason="no numba here")


def random_keys(rng, num_rows):
    rows = [rng.integers(0, high, num_rows) for high in (1 << 20, 64, 1 << 62)]
    return np.stack(rows).astype(np.int64)


def winners_of(logits, temperatures, keys):
    winners = np.full(len(logits), -7)
    noise_kernel.race(logits, temperatures, keys.view(np.uint64), int(Purpose.OUTPUT), winners)
    return winners


def times_of(logits, temperatures, keys):
    """noise / weight of every token, in double precision but for the noise."""
    positions, samples, seeds = (torch.from_numpy(row) for row in keys)
    noise = exponential_noise(seeds, samples, positions, Purpose.OUTPUT, logits.shape[1])
    scaled = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return noise.numpy().astype(np.float64) / np.exp(scaled / temperatures[:, None])


@pytest.mark.parametrize("num_tokens", [1, 7, 64, 4099])
def test_the_winner_has_the_least_time(num_tokens):
    rng = np.random.default_rng(num_tokens)
    logits = (rng.standard_normal((600, num_tokens)) * 4).astype(np.float32)
    temperatures = rng.choice([0.05, 0.6, 1.0, 1.5], 600).astype(np.float32)
    keys = random_keys(rng, 600)
    times = times_of(logits, temperatures, keys)
    winners = winners_of(logits, temperatures, keys)
    # Whoever ties to rounding might win, about once in a million races: of these none does.
    assert winners.tolist() == times.argmin(axis=1).tolist()


def test_what_is_impossible_never_wins():
    rng = np.random.default_rng(0)
    logits = np.full((500, 40), -np.inf, np.float32)
    logits[:, 17] = rng.standard_normal(500) * 50
    logits[::2, 31] = logits[::2, 17] - 1
    winners = winners_of(logits, np.full(500, 1.5, np.float32), random_keys(rng, 500))
    assert set(winners[::2]) == {17, 31}
    assert set(winners[1::2]) == {17}


def test_small_noise_keeps_its_bits():
    """It decides the race: as many different values as words."""
    words = np.concatenate([np.arange(4000), 2 ** np.arange(32) - 1]).astype(np.float32)
    found = np.array([noise_kernel.exponential(word) for word in words], np.float64)
    expected = -np.log1p(-np.minimum((words.astype(np.float64) + 0.5) * 2.0**-32, 1 - 2.0**-24))
    assert np.abs(found / expected - 1).max() < 3e-6
    assert len(set(found[:4000])) == 4000


def test_rows_without_numba_draw_the_same(monkeypatch):
    """None of these ties to rounding, see above."""
    rng = np.random.default_rng(5)
    logits = torch.from_numpy((rng.standard_normal((400, 300)) * 3).astype(np.float32))
    kinds = [{"top_p": 0.9}, {}, {"temperature": 0.0}, {"top_k": 5}, {"temperature": 1.3}]
    states = [state(seed=place, **kinds[place % len(kinds)]) for place in range(400)]
    batch = SamplingBatch.build(states)
    compiled = sample(logits, batch).token_ids
    monkeypatch.setattr(noise_kernel, "is_usable", lambda: False)
    assert sample(logits, batch).token_ids.tolist() == compiled.tolist()


def test_one_compilation_serves_every_shape():
    """Another would be made in the middle of a round."""
    for num_rows in (1, 2, 9):
        logits = torch.randn(num_rows, 33)
        states = [state(seed=place) for place in range(num_rows)]
        for each in (logits, logits[:1], logits.T.contiguous().T):
            sample(each, SamplingBatch.build(states[: len(each)]))
    assert len(noise_kernel.race.signatures) == 1


BAD = [float("nan"), float("inf")]
PLACES = [0, 63, 64, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("num_tokens", [65, 128, 4096])
def test_one_bad_logit_anywhere_spoils_its_row_and_no_other(
    monkeypatch, num_tokens, temperature, is_compiled, dtype
):
    monkeypatch.setattr(noise_kernel, "is_usable", lambda: is_compiled)
    logits = torch.randn(2 + len(BAD) * len(PLACES), num_tokens, dtype=dtype)
    logits[1] = -torch.inf
    for row, (value, place) in enumerate(((v, p) for v in BAD for p in PLACES), start=2):
        logits[row, place] = value
    states = [state(seed=row, temperature=temperature) for row in range(len(logits))]
    sampled = sample(logits, SamplingBatch.build(states))
    assert sampled.bad_rows.tolist() == [False] + [True] * (len(logits) - 1)
    assert 0 <= sampled.token_ids[0] < num_tokens
