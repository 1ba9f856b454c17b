"""The noise is Philox, keyed as documented, exponential, and the same however it is asked for."""

import math

import numpy as np
import pytest
import torch

from specserve import noise
from specserve.backends.cpu import noise as compiled_noise
from specserve.noise import (
    OnceKeys,
    Purpose,
    exponential_noise,
    exponential_noise_at,
    once_words,
    philox4x32,
    seed_bits,
)

# Known answers published with Random123 (kat_vectors): counter, key, output.
KNOWN_ANSWERS = [
    (
        "00000000 00000000 00000000 00000000",
        "00000000 00000000",
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ),
    (
        "ffffffff ffffffff ffffffff ffffffff",
        "ffffffff ffffffff",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
    ),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.fixture(autouse=True, params=["compiled", "reference"])
def way(request, monkeypatch):
    """Each test with either way to compute the words on a CPU."""
    if not compiled_noise.register():
        if request.param == "compiled":
            pytest.skip("numba is absent, or does not work")
    elif request.param == "reference":
        monkeypatch.setattr(noise, "_word_bits", by_reference)


def by_reference(seeds, sample_words, positions, purpose_words, blocks):
    return noise.philox_floats(blocks, positions, sample_words, purpose_words, seeds)


SEEDS = [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF, 12345, 2**32, 7]


def words(text):
    return [int(word, 16) for word in text.split()]


def keys(num_rows, rng_seed=0):
    rng = np.random.default_rng(rng_seed)
    seeds = torch.tensor([seed_bits(int(s)) for s in rng.integers(0, 2**64, num_rows, np.uint64)])
    samples = torch.from_numpy(rng.integers(0, 64, num_rows))
    positions = torch.from_numpy(rng.integers(0, 2**20, num_rows))
    return seeds, samples, positions


def scalar_philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    output = philox4x32(
        torch.tensor(words(counter)).reshape(4, 1, 1), torch.tensor(words(key)).reshape(2, 1)
    )
    assert [int(word.item()) for word in output] == words(answer)


def test_counter_and_key_are_laid_out_as_documented():
    sample, position, purpose = 3, 123_456, Purpose.DRAFT
    seeds = torch.tensor([seed_bits(seed) for seed in SEEDS])
    rows = torch.ones_like(seeds)
    token_ids = torch.tensor([0, 1, 2, 3, 4, 4095, 151_935]).expand(len(SEEDS), -1)
    values = exponential_noise_at(seeds, rows * sample, rows * position, purpose, token_ids)
    for seed, row in zip(SEEDS, values.tolist(), strict=True):
        for token_id, value in zip(token_ids[0].tolist(), row, strict=True):
            counter = (token_id // 4, position, sample, int(purpose))
            bits = scalar_philox(counter, (seed % 2**32, seed >> 32))[token_id % 4]
            assert value == pytest.approx(-math.log1p(-(bits + 0.5) / 2**32), rel=3e-7, abs=0)


@pytest.mark.parametrize("num_tokens", [1, 3, 4096, 4099, 50_001])
def test_a_row_does_not_depend_on_the_rows_beside_it(num_tokens):
    seeds, samples, positions = keys(9)
    together = exponential_noise(seeds, samples, positions, Purpose.OUTPUT, num_tokens)
    assert together.shape == (9, num_tokens)
    for r in (0, 4, 8):
        row = slice(r, r + 1)
        alone = exponential_noise(
            seeds[row], samples[row], positions[row], Purpose.OUTPUT, num_tokens
        )
        assert torch.equal(alone[0], together[r])


@pytest.mark.parametrize("num_ids", [1, 7, 64, 9000])
def test_noise_at_chosen_ids_has_the_bits_of_the_full_row(num_ids):
    seeds, samples, positions = keys(6)
    full = exponential_noise(seeds, samples, positions, Purpose.OUTPUT, 40_003)
    token_ids = torch.randint(0, 40_003, (6, num_ids), generator=torch.Generator().manual_seed(1))
    chosen = exponential_noise_at(seeds, samples, positions, Purpose.OUTPUT, token_ids)
    assert torch.equal(chosen, full.gather(1, token_ids))


def test_every_part_of_the_key_matters():
    one = torch.tensor([1])
    rows = [
        exponential_noise(one, one, one, Purpose.OUTPUT, 64),
        exponential_noise(one + 1, one, one, Purpose.OUTPUT, 64),
        exponential_noise(one + 2**32, one, one, Purpose.OUTPUT, 64),
        exponential_noise(one, one + 1, one, Purpose.OUTPUT, 64),
        exponential_noise(one, one, one + 1, Purpose.OUTPUT, 64),
        exponential_noise(one, one, one, Purpose.DRAFT, 64),
        exponential_noise(one, one, one, Purpose.ACCEPTANCE, 64),
    ]
    assert torch.cat(rows).flatten().unique().numel() == len(rows) * 64


def test_the_extreme_words_stay_finite_and_above_zero():
    ends = torch.tensor([0, 1, 2**32 - 1, 2**32 - 128, 2**32 - 129]).to(torch.float32)
    values = noise._exponential(ends)
    assert values[0].item() == pytest.approx(2.0**-33, rel=1e-6, abs=0)
    assert values[1].item() == pytest.approx(1.5 * 2.0**-32, rel=1e-6, abs=0)
    assert values[2].item() == pytest.approx(24 * math.log(2), rel=1e-6)
    assert values.isfinite().all()


def test_the_noise_is_exponential():
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-6, over tokens and over positions."""
    seeds, samples, positions = keys(1)
    along_tokens = exponential_noise(seeds, samples, positions, Purpose.OUTPUT, 1 << 18)[0]
    rows = torch.arange(1 << 16)
    zeros = torch.zeros_like(rows)
    along_positions = exponential_noise(zeros, zeros, rows, Purpose.OUTPUT, 4).flatten()
    for values in (along_tokens, along_positions):
        count = values.numel()
        distribution = 1 - (-values.double().sort().values).exp()
        steps = torch.arange(1, count + 1) / count
        distance = torch.maximum(
            (steps - distribution).max(), (distribution - steps + 1 / count).max()
        )
        assert distance.item() < math.sqrt(math.log(2 / 1e-6) / (2 * count))


@pytest.mark.parametrize("function", [torch.log1p, torch.exp])
def test_torch_gives_an_element_the_same_bits_wherever_it_lies(function):
    """The premise of batch invariance: vector code and its scalar tail agree."""
    values = -torch.rand(4099, generator=torch.Generator().manual_seed(0))
    whole = function(values)
    for start in range(33):
        for length in (1, 3, 7, 8, 9, 15, 16, 17, 33, 100):
            part = function(values[start : start + length].clone())
            assert torch.equal(part, whole[start : start + length])


@pytest.mark.gpu
def test_cuda_gives_the_same_words_and_floats_within_two_ulp():
    rows = keys(5)
    here = exponential_noise(*rows, Purpose.OUTPUT, 5001)
    there = exponential_noise(*(row.cuda() for row in rows), Purpose.OUTPUT, 5001).cpu()
    assert (here.view(torch.int32) - there.view(torch.int32)).abs().max() <= 2
    blocks = torch.arange(5001).unsqueeze(0)
    bits = noise._float_bits(*(row.cuda() for row in rows), Purpose.OUTPUT, blocks.cuda())
    assert torch.equal(bits.cpu(), noise._float_bits(*rows, Purpose.OUTPUT, blocks))


def test_compiled_words_are_those_of_the_definition():
    """Of one counter word for all rows and of one a row, in any memory layout."""
    if not compiled_noise.register():
        return
    seeds, samples, positions = keys(37)
    blocks = torch.randint(5000, (11, 37)).T
    purposes = torch.full_like(seeds, int(Purpose.RECOVERY))
    for wanted in (blocks, torch.arange(3).expand(37, -1), torch.arange(300)[None]):
        for step in (1, 2):
            own = wanted if len(wanted) == 1 else wanted[::step]
            given = (own, positions[::step], samples[::step], purposes[::step], seeds[::step])
            assert torch.equal(compiled_noise.philox_floats(*given), noise.philox_floats(*given))
    signatures = getattr(compiled_noise.word_floats, "signatures", [None])
    assert len(signatures) == 1  # another would be compiled in the middle of a round


def test_words_are_packed_as_keys_have_them():
    one = OnceKeys.build([0], [3], [4], [5], [0])
    assert once_words(3, 4, 5) == (int(one.sample_words), int(one.branch_words))
