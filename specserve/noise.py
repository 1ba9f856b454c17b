"""Counter-based noise: a pure function of (seed, sample, position, purpose, token id).

There is no generator state, so nothing can be consumed out of order: the same request gets the same
noise whatever else is in the batch, after preemption, and on every backend. The integers are those
of Philox4x32-10 (Salmon et al., SC 2011); the floats that follow agree within 2 ulp across backends
and bit for bit on one.

This module does not know what the noise decides; `specserve.sampling` does.

Layout of one Philox call, 32-bit words:

    key      0  low half of the seed            1  high half
    counter  0  token_id // 4; the four output words belong to four neighbouring ids
             1  absolute position of the token, prompt included
             2  sample index in the low 12 bits; the round above them
             3  purpose in the low byte; the branch above it

Round and branch are zero for `Purpose.OUTPUT`. Purposes of the rejection family must never meet the
same key twice, so they use a request nonce in place of the seed and fill in round and branch, as
`OnceKeys` packs them.
"""

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_SAMPLE_BITS, _ROUND_BITS, _PURPOSE_BITS, _BRANCH_BITS = 12, 20, 8, 24
_MAX_UNIFORM = 1.0 - 2.0**-24  # the largest float32 below 1


class Purpose(enum.IntEnum):
    """What the noise decides; equal counters of different purposes are independent."""

    OUTPUT = 0  # the target's token
    DRAFT = 1  # a drafted token (rejection family)
    ACCEPTANCE = 2  # accept or reject (rejection family)
    RECOVERY = 3  # the recovery or bonus token under plain rejection


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
    purposes = torch.full_like(seeds, int(purpose))
    return _exponentials(seeds, sample_indices, positions, purposes, num_tokens)


def exponential_noise_of(words: Tensor, num_tokens: int) -> Tensor:
    """`exponential_noise` under whole counters and keys: int64 [4, R] to float32 [R, num_tokens].

    `words` are positions, sample words, purpose words and seeds.
    """
    positions, sample_words, purpose_words, seeds = words
    return _exponentials(seeds, sample_words, positions, purpose_words, num_tokens)


def exponential_noise_at(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, token_ids: Tensor
) -> Tensor:
    """`exponential_noise` at chosen token ids only, bit for bit: int64 [R, K] to float32 [R, K]."""
    bits = _float_bits(seeds, sample_indices, positions, purpose, token_ids >> 2)
    return _exponential(bits.gather(2, (token_ids & 3).unsqueeze(2)).squeeze(2))


def once_words(sample_index: int, round_id: int, branch: int) -> tuple[int, int]:
    """Sample and branch word of `OnceKeys`. ValueError for what does not fit."""
    for name, value, bits in (
        ("sample index", sample_index, _SAMPLE_BITS),
        ("round", round_id, _ROUND_BITS),
        ("branch", branch, _BRANCH_BITS),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} outside 0..2**{bits} - 1: a key would be used twice")
    return sample_index | round_id << _SAMPLE_BITS, branch << _PURPOSE_BITS


@dataclass(frozen=True, slots=True)
class OnceKeys:
    """Keys of R draws that happen once; no two draws of a service's life may share one.

    All int64 [R]. `nonces` are seeds that no other request ever had.
    """

    nonces: Tensor
    positions: Tensor  # absolute, of the token that the draw belongs to
    sample_words: Tensor  # sample index and round
    branch_words: Tensor  # branch, with room for the purpose

    @staticmethod
    def build(
        nonces: Sequence[int],
        sample_indices: Sequence[int],
        rounds: Sequence[int],
        branches: Sequence[int],
        positions: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> "OnceKeys":
        """From host values, nonces as made by `seed_bits`. ValueError for one that does not fit."""
        words = map(once_words, sample_indices, rounds, branches)
        sample_words, branch_words = zip(*words, strict=True) if sample_indices else ((), ())
        columns = (list(nonces), list(positions), sample_words, branch_words)
        return OnceKeys(*torch.tensor(columns, dtype=torch.int64, device=device))

    def at(self, rows: Tensor) -> "OnceKeys":
        """The keys at these places, int64 [N]."""
        return OnceKeys(
            self.nonces[rows],
            self.positions[rows],
            self.sample_words[rows],
            self.branch_words[rows],
        )

    def exponential(self, purpose: Purpose, num_tokens: int) -> Tensor:
        """`exponential_noise` under these keys: float32 [R, num_tokens]."""
        words = self.branch_words + int(purpose)
        return _exponentials(self.nonces, self.sample_words, self.positions, words, num_tokens)

    def uniform(self, purpose: Purpose) -> Tensor:
        """One uniform variate a key, float32 [R], above 0 and below 1."""
        words, blocks = self.branch_words + int(purpose), torch.zeros_like(self.nonces).unsqueeze(1)
        bits = _word_bits(self.nonces, self.sample_words, self.positions, words, blocks)
        return _uniform(bits[:, 0, 0])


def _exponentials(
    seeds: Tensor, sample_words: Tensor, positions: Tensor, purpose_words: Tensor, num_tokens: int
) -> Tensor:
    """Of every row and token id, float32 [R, num_tokens]."""
    blocks = torch.arange((num_tokens + 3) // 4, device=seeds.device).unsqueeze(0)
    bits = _word_bits(seeds, sample_words, positions, purpose_words, blocks)
    return _exponential(bits.flatten(1))[:, :num_tokens]


def _float_bits(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, blocks: Tensor
) -> Tensor:
    """`_word_bits` in round and branch 0."""
    purposes = torch.full_like(seeds, int(purpose))
    return _word_bits(seeds, sample_indices, positions, purposes, blocks)


def _word_bits(
    seeds: Tensor, sample_words: Tensor, positions: Tensor, purpose_words: Tensor, blocks: Tensor
) -> Tensor:
    """float32 [R, N, 4]: the output words of every counter, rounded to nearest.

    `blocks`, int64 [R or 1, N], are the first counter words; the words of the rows int64 [R].
    """
    return torch.ops.specserve.philox_floats(blocks, positions, sample_words, purpose_words, seeds)


def philox_floats(
    blocks: Tensor, positions: Tensor, sample_words: Tensor, purpose_words: Tensor, seeds: Tensor
) -> Tensor:
    """The definition of the operator `specserve::philox_floats`, for any device.

    A backend may register an implementation of its own for its kind of device: the words are
    integers and are rounded once, so every implementation returns the same bits.
    """
    columns = (row.unsqueeze(1) for row in (positions, sample_words, purpose_words))
    counter = torch.stack(torch.broadcast_tensors(blocks, *columns))
    key = torch.stack((seeds & _MASK, (seeds >> 32) & _MASK))
    return torch.stack(philox4x32(counter, key), dim=2).to(torch.float32)


_LIBRARY = torch.library.Library("specserve", "DEF")
_LIBRARY.define(
    "philox_floats(Tensor blocks, Tensor positions, Tensor sample_words, Tensor purpose_words,"
    " Tensor seeds) -> Tensor"
)
_LIBRARY.impl("philox_floats", philox_floats, "CompositeExplicitAutograd")


def philox4x32(counter: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: counters [4, R, N] under keys [2, R] to four output words [R, N].

    All are int64 that hold words below 2**32. Each round multiplies words 0 and 2 by a constant and
    mixes the upper half of either product with the lower half of the other's predecessor: with both
    products in one tensor a round is five operations, whatever the number of lanes.
    """
    constants = _constants(counter.device)
    # The pair of words changes places every round; its keys and multipliers change with it. Sums
    # of keys may run over 32 bits, because what they are mixed into is masked.
    round_keys = key[constants.key_order][..., None] + constants.key_steps
    mixed, product = counter[0::2], counter[1::2]
    for index in range(_NUM_ROUNDS):
        previous = product.flip(0)
        # 64-bit products wrap modulo 2**64, so their bits are right whatever the sign says.
        product = mixed * constants.multipliers[index % 2]
        mixed = product >> 32
        mixed ^= previous
        mixed ^= round_keys[index]
        mixed &= _MASK  # also drops the sign that a signed shift drags along
    product &= _MASK
    return mixed[0], product[0], mixed[1], product[1]


class _Constants(NamedTuple):
    multipliers: Tensor  # [2, 2, 1, 1] for even and odd rounds
    key_order: Tensor  # [10, 2]
    key_steps: Tensor  # [10, 2, 1, 1]


@functools.cache
def _constants(device: torch.device) -> _Constants:
    """The constants of the cipher."""
    multipliers = torch.tensor([0xD2511F53, 0xCD9E8D57], device=device)
    weyl = torch.tensor([0x9E3779B9, 0xBB67AE85], device=device)
    key_order = torch.tensor([[1, 0], [0, 1]] * (_NUM_ROUNDS // 2), device=device)
    rounds = torch.arange(_NUM_ROUNDS, device=device)[:, None]
    return _Constants(
        multipliers=torch.stack((multipliers, multipliers.flip(0)))[..., None, None],
        key_order=key_order,
        key_steps=(rounds * weyl[key_order])[..., None, None],
    )


def _uniform(bits: Tensor) -> Tensor:
    """(bits + 0.5) * 2**-32 in place; what would round to 1 is the largest float below it."""
    return bits.add_(0.5).mul_(2.0**-32).clamp_(max=_MAX_UNIFORM)


def _exponential(bits: Tensor) -> Tensor:
    """-log1p(-v) for v = (bits + 0.5) * 2**-32, in place.

    In float32 the half survives where it matters: it keeps bits = 0 away from v = 0, and small v,
    which are drawn, keep all their 32 bits. Large bits round to multiples of up to 256, the top
    ones to v = 1, whose logarithm is infinite: those are clamped to the largest float below 1.
    """
    negated = bits.add_(0.5).mul_(-(2.0**-32)).clamp_(min=-_MAX_UNIFORM)
    return negated.log1p_().neg_()
