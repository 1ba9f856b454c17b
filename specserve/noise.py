"""Counter-based noise: a pure function of (seed, sample, position, purpose, token id).

There is no generator state, so nothing can be consumed out of order: the same request gets the same
noise whatever else is in the batch, after preemption, and on every backend. The integers are those
of Philox4x32-10 (Salmon et al., SC 2011); the floats that follow agree within 2 ulp across backends
and bit for bit on one.

This module does not know what the noise decides; `specserve.decoding` does.

Layout of one Philox call, 32-bit words:

    key      0  low half of the seed            1  high half
    counter  0  token_id // 4; the four output words belong to four neighbouring ids
             1  absolute position of the token, prompt included
             2  sample index in the low 12 bits; the round above them
             3  purpose in the low byte; the branch above it

Round and branch are zero for `Purpose.OUTPUT`. Purposes of the rejection family must never meet the
same key twice, so they use a request nonce in place of the seed and fill in round and branch.
"""

import enum
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# On the CPU the integer part runs in numpy over the same memory: its calls cost a third of torch's,
# which is what counts at a few thousand lanes. Both spell the operators alike, so the cipher below
# is written once. Lanes hold 32-bit words in 64 bits, unsigned in numpy and signed in torch.
Lanes = np.ndarray | Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
_TILE_LANES = 16384  # 64 KiB an array
_MAX_UNIFORM = 1.0 - 2.0**-24  # the largest float32 below 1


class Purpose(enum.IntEnum):
    """What the noise decides; equal counters of different purposes are independent."""

    OUTPUT = 0  # the target's token
    DRAFT = 1  # a drafted token (rejection family)
    ACCEPTANCE = 2  # accept or reject (rejection family)


def seed_bits(seed: int) -> int:
    """The int64 that carries the bits of `seed`, 0 <= seed < 2**64."""
    return seed - (1 << 64) if seed >> 63 else seed


def exponential_noise(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, num_tokens: int
) -> Tensor:
    """Standard exponential variates, one for every row and token id.

    `seeds`, `sample_indices` and `positions` are int64 [R]; seeds as made by `seed_bits`.
    Returns float32 [R, num_tokens], all finite and above zero.
    """
    blocks = torch.arange((num_tokens + 3) // 4, device=seeds.device).unsqueeze(0)
    bits = _float_bits(seeds, sample_indices, positions, purpose, blocks)
    return _exponential(bits.flatten(1))[:, :num_tokens]


def exponential_noise_at(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, token_ids: Tensor
) -> Tensor:
    """`exponential_noise` at chosen token ids only, bit for bit: int64 [R, K] to float32 [R, K]."""
    bits = _float_bits(seeds, sample_indices, positions, purpose, token_ids >> 2)
    return _exponential(bits.gather(2, (token_ids & 3).unsqueeze(2)).squeeze(2))


def _float_bits(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, blocks: Tensor
) -> Tensor:
    """float32 [R, N, 4]: the output words of every counter, rounded to nearest.

    `blocks`, int64 [R or 1, N], are the first counter words.
    """
    rows = (positions, sample_indices, seeds)
    if seeds.device.type != "cpu":
        words = _cipher(blocks, *(row.unsqueeze(1) for row in rows), purpose=purpose)
        return torch.stack([torch.as_tensor(word) for word in words], dim=2).to(torch.float32)
    return torch.from_numpy(_float_bits_on_cpu(blocks, *rows, purpose=purpose))


def _float_bits_on_cpu(
    blocks: Tensor, positions: Tensor, sample_indices: Tensor, seeds: Tensor, *, purpose: Purpose
) -> np.ndarray:
    """Tile by tile: larger temporaries would leave the cache and go back to the system each time."""
    lanes = blocks.numpy().view(np.uint64)
    rows = [row.numpy().view(np.uint64)[:, None] for row in (positions, sample_indices, seeds)]
    num_rows, num_blocks = len(seeds), lanes.shape[1]
    tile_rows = max(1, _TILE_LANES // max(1, num_blocks))
    bits = np.empty((num_rows, num_blocks, 4), np.float32)
    for top in range(0, num_rows, tile_rows):
        tile = slice(top, top + tile_rows)
        for left in range(0, num_blocks, _TILE_LANES):
            columns = slice(left, left + _TILE_LANES)
            tile_lanes = lanes[:, columns] if len(lanes) == 1 else lanes[tile, columns]
            words = _cipher(tile_lanes, *(row[tile] for row in rows), purpose=purpose)
            for index, word in enumerate(words):
                bits[tile, columns, index] = word
    return bits


def _cipher(
    blocks: Lanes, positions: Lanes, sample_indices: Lanes, seeds: Lanes, *, purpose: Purpose
) -> tuple[Lanes, ...]:
    """Where the layout in the head of this module is made: blocks [R or 1, N], others [R, 1]."""
    purposes = seeds * 0 + int(purpose)
    key = (seeds & _MASK, (seeds >> 32) & _MASK)
    return philox4x32((blocks, positions, sample_indices, purposes), key)


def philox4x32(counter: Sequence[Lanes], key: tuple[Lanes, Lanes]) -> tuple[Lanes, ...]:
    """Philox4x32-10 over lanes that broadcast: four counter words, two key words, four words out.

    Words are below 2**32 on the way in and out; the inputs are left alone. The products make new
    arrays, which the rest of the round reuses in place as soon as shapes have grown to their full
    width; until then words that are constant along a row stay one column wide.
    """
    c0, c1, c2, c3 = counter
    for index in range(_NUM_ROUNDS):
        # Key sums may run over 32 bits: what is mixed is masked.
        key0, key1 = (half + index * step for half, step in zip(key, _WEYL, strict=True))
        # 64-bit products wrap modulo 2**64, so their bits are right whatever the sign says.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = _mixed(product1 >> 32, c1, key0)
        c2 = _mixed(product0 >> 32, c3, key1)
        # The upper halves stay: these words are only ever xored, and the result is masked.
        c1, c3 = product1, product0
    return c0, c1 & _MASK, c2, c3 & _MASK


def _mixed(high: Lanes, word: Lanes, key: Lanes) -> Lanes:
    """(high ^ word ^ key) cut to 32 bits, in the memory of `high` where it is wide enough."""
    if high.shape != word.shape:
        return (high ^ (word ^ key)) & _MASK
    high ^= word
    high ^= key
    high &= _MASK  # also drops the sign that a signed shift drags along
    return high


def _exponential(bits: Tensor) -> Tensor:
    """-log1p(-v) for v = (bits + 0.5) * 2**-32, in place.

    In float32 the half survives where it matters: it keeps bits = 0 away from v = 0, and small v,
    which win the race, keep all their 32 bits. Large bits round to multiples of up to 256, the top
    ones to v = 1, whose logarithm is infinite: those are clamped to the largest float below 1.
    """
    negated = bits.add_(0.5).mul_(-(2.0**-32)).clamp_(min=-_MAX_UNIFORM)
    return negated.log1p_().neg_()
