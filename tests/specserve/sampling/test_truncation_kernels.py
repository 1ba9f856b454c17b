"""What is possible, compiled: the same tokens as by torch, and the winners of its race."""

import numpy as np
import pytest
import torch

from specserve.backends.cpu import compiled, noise_kernel
from specserve.sampling import ranks, truncation_kernels
from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.sampling import NO_TOKEN, sample
from specserve.sampling.truncation import truncate
from specserve.sampling.truncation_kernels import keep_possible, race_of_possible, weight_of
from tests.specserve.sampling.test_sampling import state

pytestmark = pytest.mark.skipif(compiled.numba is None, reason="no numba here")

# Around a stripe, where there are as many stripes as a first look wants, and in between.
SIZES = [2, 5, 63, 255, 256, 257, 300, 4096, 65_536, 70_001]
CUTS = [
    (1, 1.0, 0.0), (3, 0.5, 0.0), (20, 0.95, 0.0), (300, 1.0, 0.02), (10**6, 0.9, 0.0),
    (0, 0.1, 0.0), (0, 0.9, 0.0), (0, 0.9999, 0.3), (0, 1.0, 0.001), (0, 1.0, 1.0),
]  # fmt: skip


def scaled_logits(num_tokens: int, spread: float, kind: str) -> torch.Tensor:
    found = torch.randn(num_tokens, generator=torch.Generator().manual_seed(num_tokens)) * spread
    if kind == "ties":
        found = (2 * found).round() / 2
    if kind == "impossible":
        found[::3] = -torch.inf
        found[1] = found[found.isfinite()].max() - 95.0
    return found - found.max()


def possible(scaled: torch.Tensor, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Weights by the kernel, which has to name the tokens that have one."""
    weights, ids = np.empty(len(scaled), np.float32), np.empty(len(scaled), np.int64)
    count = keep_possible(scaled.numpy(), top_k, top_p, min_p, weights, ids)
    assert sorted(ids[:count]) == np.nonzero(weights)[0].tolist()
    return weights


@pytest.mark.slow  # compiles by itself what is called as it is
@pytest.mark.parametrize("kind", ["distinct", "ties", "impossible"])
@pytest.mark.parametrize("num_tokens", SIZES)
def test_the_tokens_of_torch_stay_possible(num_tokens, kind):
    for spread in (0.2, 2.0, 8.0):
        scaled = scaled_logits(num_tokens, spread, kind)
        weights = torch.from_numpy(np.array([weight_of(x) for x in scaled.numpy()], np.float32))
        for top_k, top_p, min_p in CUTS:
            cut = Truncation(
                places=torch.tensor([0]),
                top_k=torch.tensor([top_k]),
                top_p=torch.tensor([top_p], dtype=torch.float64),
                min_p=torch.tensor([min_p], dtype=torch.float64),
                max_top_k=top_k,
                any_top_p=top_p < 1,
            )
            expected = truncate(scaled[None], weights[None], cut)[0]
            found = possible(scaled, top_k, top_p, min_p)
            assert found.tolist() == expected.tolist(), (spread, top_k, top_p, min_p)


@pytest.mark.parametrize("fields", [{"top_p": 0.8}, {"top_k": 7}, {"min_p": 0.03}])
def test_winners_are_those_of_torchs_race(fields, monkeypatch):
    """Weights are to the last few bits those of torch, and none of these races ties to them."""
    logits = torch.randn(400, 3000, generator=torch.Generator().manual_seed(1)) * 2
    states = [state(seed=seed, temperature=0.9, **fields) for seed in range(400)]
    found = sample(logits, SamplingBatch.build(states)).token_ids
    monkeypatch.setattr(truncation_kernels, "are_usable", lambda: False)
    expected = sample(logits, SamplingBatch.build(states)).token_ids
    assert torch.equal(found, expected)


def test_a_row_has_its_token_alone_and_in_any_batch():
    logits = torch.randn(40, 4096, generator=torch.Generator().manual_seed(2)) * 3
    fields = [{}, {"top_p": 0.9}, {"top_k": 4}, {"temperature": 0.0}, {"presence_penalty": 1.0}]
    states = [state(seed=n, **fields[n % 5]) for n in range(40)]
    together = sample(logits, SamplingBatch.build(states)).token_ids
    alone = [
        sample(logits[n : n + 1], SamplingBatch.build([states[n]])).token_ids for n in range(40)
    ]
    assert together.tolist() == torch.cat(alone).tolist()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_of_logits_nobody_can_sample_from_nobody_wins(value):
    logits = torch.randn(3, 300)
    logits[1] = value if value == -torch.inf else logits[1].index_fill(0, torch.tensor(7), value)
    found = sample(logits, SamplingBatch.build([state(seed=n, top_p=0.5) for n in range(3)]))
    assert found.bad_rows.tolist() == [False, True, False]
    assert found.token_ids[1] == NO_TOKEN == noise_kernel.NOBODY


def test_winners_have_the_law_of_what_is_left():
    """Six standard deviations of each share."""
    count = 20_000
    logits = torch.tensor([0.0, -0.5, -1.0, -1.5, -2.0, -9.0])
    states = [state(seed=seed, top_k=4) for seed in range(count)]
    drawn = sample(logits.expand(count, -1), SamplingBatch.build(states)).token_ids
    law = logits[:4].softmax(0)
    shares = torch.bincount(drawn, minlength=6) / count
    assert shares[4:].tolist() == [0.0, 0.0]
    assert ((shares[:4] - law).abs() <= 6 * (law * (1 - law) / count).sqrt()).all()


@pytest.mark.slow
def test_a_mass_is_reached_at_the_same_value_as_by_a_sort():
    source = np.random.default_rng(0)
    for size in (1, 2, 50, 3000):
        values = np.round(source.standard_normal(size) * 4).astype(np.float32) / 2
        masses = source.integers(0, 1 << 40, size)
        orders = np.empty(size, np.int64)
        assert ranks.orders_of(values, orders)
        descending = np.argsort(-values)
        for share in (0.0, 0.3, 0.999, 1.0):
            needed = float(masses.sum()) * share
            held = masses[descending].cumsum().astype(np.float64)
            least = values[descending[np.argmax(held >= needed)]]
            found = ranks.boundary_of_mass(orders, masses, needed)
            reached = values[orders >= found]
            if share:
                assert reached.min() == least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needed", "least"), [(0.5, 3), (2.0, 3), (np.nextafter(2.0, 3.0), 2), (3.0, 2), (4.0, 1)]
)
def test_what_is_needed_is_enough(needed, least):
    orders, masses = np.array([3, 2, 1]), np.array([2, 1, 1])
    assert ranks.boundary_of_mass(orders, masses, needed) == least


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9999, 1.0001])
def test_the_first_look_is_left_where_it_holds_less_than_is_needed(share):
    """256 tokens that hold half of it to four digits, and 255 times as many that hold the rest."""
    scaled = torch.full((65_536,), -np.log(255.0))
    scaled[::256] = 0.0
    weights = torch.from_numpy(np.array([weight_of(x) for x in scaled.numpy()[:2]], np.float32))
    first = 256 / (256 + 65_280 * float(weights[1]))
    assert np.count_nonzero(possible(scaled, 0, first * share, 0.0)) == (
        256 if share < 1 else 65_536
    )


@pytest.mark.slow
def test_a_rank_beyond_all_is_the_last():
    assert ranks.boundary(np.array([3, 2, 1]), 4)[0] == 0


def test_nothing_has_a_sign():
    """-0.0 is a tie with 0.0: a gap of the smallest float at temperature 2."""
    tiny = np.float32(1e-45)
    logits = np.array([[tiny, 0.0, -1.0]], np.float32)
    assert np.signbit((logits[0, 1] - logits[0, 0]) / np.float32(2))
    winners = np.empty(1, np.int64)
    found = set()
    for seed in range(40):
        keys = np.array([[0], [0], [0], [seed]], np.uint64)
        twos, zeros = np.full(1, 2, np.float32), np.zeros(1)
        race_of_possible(logits, twos, np.zeros(1, np.int64), zeros + 1e-9, zeros, keys, winners)
        found.add(int(winners[0]))
    assert found == {0, 1}


def test_one_compilation_serves_every_shape():
    """Another would be made in the middle of a round."""
    for count, num_tokens in ((1, 3), (4, 500)):
        for fields in ({"top_p": 0.5}, {"top_k": 2, "temperature": 0.5}):
            states = [state(seed=n, **fields) for n in range(count)]
            sample(torch.randn(count, num_tokens), SamplingBatch.build([*states, state()][:count]))
    assert len(race_of_possible.signatures) == 1
