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

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cpu import noise_kernel
from specserve.backends.cuda import cuda_graphs
from specserve.backends.cuda.cuda_graphs import Recordings, padded

# On the CPU the integers are compiled (`noise_kernel`), or made by numpy over the same memory:
# its calls cost a third of torch's, which is what counts at a few thousand lanes. numpy and torch
# spell the operators alike, so the cipher below is written once for both. Lanes hold 32-bit words
# in 64 bits, unsigned in numpy and signed in torch.
Lanes = np.ndarray | Tensor

_MASK = 0xFFFFFFFF
_NUM_ROUNDS = 10
_SAMPLE_BITS, _ROUND_BITS, _PURPOSE_BITS, _BRANCH_BITS = 12, 20, 8, 24
_TILE_LANES = 8192  # 64 KiB for a pair of words
_MOST_RECORDED_LANES = 1 << 19  # whose kernels take no longer than beginning them does
_FIRST_BLOCK = np.zeros((1, 1), np.uint64)
_MAX_UNIFORM = 1.0 - 2.0**-24  # the largest float32 below 1


class Purpose(enum.IntEnum):
    """What the noise decides; equal counters of different purposes are independent."""

    OUTPUT = 0  # the target's token
    DRAFT = 1  # a drafted token (rejection family)
    ACCEPTANCE = 2  # accept or reject (rejection family)
    RECOVERY = 3  # the recovery or bonus token under plain rejection


def prepare(device: torch.device) -> None:
    """Compile now what would otherwise be compiled in the middle of a round, if it is needed."""
    if device.type == "cpu":
        noise_kernel.is_usable()


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


def log_exponential_noise(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, purpose: Purpose, num_tokens: int
) -> Tensor:
    """The logarithm of `exponential_noise` that is right to its last few bits, within 1e-6.

    For drafts; with and without numba it differs by as much.
    """
    if seeds.device.type != "cpu" or not noise_kernel.is_usable():
        return exponential_noise(seeds, sample_indices, positions, purpose, num_tokens).log_()
    purposes = torch.full_like(seeds, int(purpose))
    logs = np.empty((len(seeds), num_tokens), np.float32)
    noise_kernel.log_exponentials(
        _words(positions), _words(sample_indices), _words(purposes), _words(seeds), logs
    )
    return torch.from_numpy(logs)


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


def host_uniforms(words: np.ndarray) -> np.ndarray:
    """`OnceKeys.uniform` where keys are on the host and few: float32 [R].

    `words`, uint64 [4, R], are positions, sample words, branch words plus purposes, and nonces.
    """
    bits = np.empty((words.shape[1], 1, 4), np.float32)
    fill = noise_kernel.word_floats if noise_kernel.is_usable() else _tiled_word_floats
    fill(_FIRST_BLOCK, words[0], words[1], words[2], words[3], bits)
    return _uniform(torch.from_numpy(bits[:, 0, 0].copy())).numpy()


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
    if seeds.device.type == "cpu":
        words = [_words(each) for each in (blocks, positions, sample_words, purpose_words, seeds)]
        fill = noise_kernel.word_floats if noise_kernel.is_usable() else _tiled_word_floats
        bits = np.empty((len(seeds), blocks.shape[1], 4), np.float32)
        fill(words[0], words[1], words[2], words[3], words[4], bits)
        return torch.from_numpy(bits)
    rows = (seeds, sample_words, positions, purpose_words)
    num_rows = padded(max(1, len(seeds)))
    num_lanes = num_rows * blocks.shape[1] if len(seeds) else 0
    if cuda_graphs.are_used(seeds.device) and 0 < num_lanes <= _MOST_RECORDED_LANES:
        key = _Shape(num_rows, blocks.shape[1], len(blocks) == 1, seeds.device)
        made = _recordings().run(key, lambda each: each.fill(rows, blocks))
        if made is not None:
            return made.bits[: len(seeds)].clone()  # which callers write to
    return _device_word_bits(seeds, sample_words, positions, purpose_words, blocks)


def _device_word_bits(
    seeds: Tensor, sample_words: Tensor, positions: Tensor, purpose_words: Tensor, blocks: Tensor
) -> Tensor:
    columns = (row.unsqueeze(1) for row in (positions, sample_words, purpose_words))
    counter = torch.stack(torch.broadcast_tensors(blocks, *columns))
    key = torch.stack((seeds & _MASK, (seeds >> 32) & _MASK))
    lanes = [torch.as_tensor(word) for word in philox4x32(counter, key)]
    return torch.stack(lanes, dim=2).to(torch.float32)


class _Shape(NamedTuple):
    num_rows: int
    num_blocks: int
    share_blocks: bool  # one row of them for all
    device: torch.device


class _RecordedBits:
    """`_device_word_bits` of a shape: eighty kernels of a microsecond or two."""

    def __init__(self, shape: _Shape) -> None:
        self._rows = torch.zeros(4, shape.num_rows, dtype=torch.int64, device=shape.device)
        num_rows = 1 if shape.share_blocks else shape.num_rows
        self._blocks = self._rows.new_zeros(num_rows, shape.num_blocks)

    def fill(self, rows: Sequence[Tensor], blocks: Tensor) -> None:
        """What is behind them belongs to some rows before, and is made for nobody."""
        torch.stack(list(rows), out=self._rows[:, : len(rows[0])])
        self._blocks[: len(blocks)].copy_(blocks)

    def __call__(self) -> None:
        seeds, sample_words, positions, purpose_words = self._rows.unbind(0)
        self.bits = _device_word_bits(seeds, sample_words, positions, purpose_words, self._blocks)


@functools.cache
def _recordings() -> Recordings[_Shape, _RecordedBits]:
    return Recordings(_RecordedBits)


def _words(lanes: Tensor) -> np.ndarray:
    """int64 of a host, as the compiled cipher reads them."""
    return np.ascontiguousarray(lanes.numpy()).view(np.uint64)


def _tiled_word_floats(
    blocks: np.ndarray,
    positions: np.ndarray,
    sample_words: np.ndarray,
    purpose_words: np.ndarray,
    seeds: np.ndarray,
    bits: np.ndarray,
) -> None:
    """Tile by tile: larger temporaries leave the cache and go back to the system every time."""
    num_rows, num_blocks, _ = bits.shape
    key = np.stack((seeds & _MASK, seeds >> 32))
    tile_rows = max(1, _TILE_LANES // max(1, num_blocks))
    for top in range(0, num_rows, tile_rows):
        rows = slice(top, top + tile_rows)
        for left in range(0, num_blocks, _TILE_LANES):
            columns = slice(left, left + _TILE_LANES)
            tile = bits[rows, columns]
            counter = np.empty((4, *tile.shape[:2]), np.uint64)
            counter[0] = blocks[:, columns] if len(blocks) == 1 else blocks[rows, columns]
            counter[1] = positions[rows, None]
            counter[2] = sample_words[rows, None]
            counter[3] = purpose_words[rows, None]
            for index, word in enumerate(philox4x32(counter, key[:, rows])):
                tile[:, :, index] = word


def philox4x32(counter: Lanes, key: Lanes) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """Philox4x32-10: counters [4, R, N] under keys [2, R] to four output words [R, N].

    All words are below 2**32. Each round multiplies words 0 and 2 by a constant and mixes the upper
    half of either product with the lower half of the other's predecessor: with both products in one
    array a round is five operations, whatever the number of lanes.
    """
    constants = _constants(counter.device if isinstance(counter, Tensor) else None)
    # The pair of words changes places every round; its keys and multipliers change with it. Sums
    # of keys may run over 32 bits, because what they are mixed into is masked.
    round_keys = key[constants.key_order][..., None] + constants.key_steps
    mixed, product = counter[0::2], counter[1::2]
    for index in range(_NUM_ROUNDS):
        previous = product[::-1] if isinstance(product, np.ndarray) else product.flip(0)
        # 64-bit products wrap modulo 2**64, so their bits are right whatever the sign says.
        product = mixed * constants.multipliers[index % 2]
        mixed = product >> constants.half
        mixed ^= previous
        mixed ^= round_keys[index]
        mixed &= constants.mask  # also drops the sign that a signed shift drags along
    product &= constants.mask
    return mixed[0], product[0], mixed[1], product[1]


class _Constants(NamedTuple):
    multipliers: Lanes  # [2, 2, 1, 1] for even and odd rounds
    key_order: Lanes  # [10, 2]
    key_steps: Lanes  # [10, 2, 1, 1]
    half: Lanes  # 32
    mask: Lanes


@functools.cache
def _constants(device: torch.device | None) -> _Constants:
    """The constants of the cipher as arrays, or as tensors on `device`."""
    multipliers = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
    weyl = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
    key_order = np.array([[1, 0], [0, 1]] * (_NUM_ROUNDS // 2))
    rounds = np.arange(_NUM_ROUNDS, dtype=np.uint64)[:, None]
    arrays = _Constants(
        multipliers=np.stack((multipliers, multipliers[::-1]))[..., None, None],
        key_order=key_order,
        key_steps=(rounds * weyl[key_order])[..., None, None],
        half=np.array(32, np.uint64),
        mask=np.array(_MASK, np.uint64),
    )
    if device is None:
        return arrays
    signed = (np.asarray(array).astype(np.int64) for array in arrays)
    return _Constants(*(torch.tensor(array, device=device) for array in signed))


def _uniform(bits: Tensor) -> Tensor:
    """(bits + 0.5) * 2**-32 in place; what would round to 1 is the largest float below it."""
    return bits.add_(0.5).mul_(2.0**-32).clamp_(max=_MAX_UNIFORM)


def _exponential(bits: Tensor) -> Tensor:
    """-log1p(-v) for v = (bits + 0.5) * 2**-32, in place.

    In float32 the half survives where it matters: it keeps bits = 0 away from v = 0, and small v,
    which win the race, keep all their 32 bits. Large bits round to multiples of up to 256, the top
    ones to v = 1, whose logarithm is infinite: those are clamped to the largest float below 1.
    """
    negated = bits.add_(0.5).mul_(-(2.0**-32)).clamp_(min=-_MAX_UNIFORM)
    return negated.log1p_().neg_()
