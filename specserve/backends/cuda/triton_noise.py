"""Philox4x32-10 of many counters as one Triton kernel: `specserve.noise.philox_floats` on a GPU.

Integers, and one rounding to float32, so no bit depends on who computes them. `word_floats` is
plain Python over what `triton.language` has: a test runs it over arrays where there is no Triton.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specserve import noise

triton: Any = None
tl: Any = SimpleNamespace(constexpr=int)  # for the annotation below
_WHY_NOT = ""
try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
except Exception as error:  # noqa: BLE001 - it looks for drivers, and raises what it likes
    _WHY_NOT = str(error)

_LANES = 256  # counters of one program
_TRIAL_ROWS = 3


def word_floats(  # noqa: PLR0913 - what a kernel needs is passed one by one
    blocks, positions, sample_words, purpose_words, seeds, out,  # noqa: ANN001 - pointers
    num_blocks, blocks_stride,  # noqa: ANN001 - integers
    LANES: tl.constexpr,  # noqa: N803 # pyright: ignore[reportInvalidTypeForm]
) -> None:  # fmt: skip
    """out float32 [R, num_blocks, 4] = the output words of every counter, rounded to nearest.

    One program a row and LANES of its counters. blocks int64, a row every `blocks_stride`: first
    counter words; the others of every row, and its key: int64 [R].
    """
    row = tl.cast(tl.program_id(0), tl.int64)
    places = tl.program_id(1) * LANES + tl.arange(0, LANES)
    first = tl.load(blocks + row * blocks_stride + places, mask=places < num_blocks, other=0)
    a = tl.cast(first, tl.uint32)
    b = tl.cast(tl.load(positions + row), tl.uint32)
    c = tl.cast(tl.load(sample_words + row), tl.uint32)
    d = tl.cast(tl.load(purpose_words + row), tl.uint32)
    seed = tl.load(seeds + row)
    first_key, second_key = tl.cast(seed, tl.uint32), tl.cast(seed >> 32, tl.uint32)
    for _ in tl.static_range(10):
        low_a, high_a = a * 0xD2511F53, tl.umulhi(a, 0xD2511F53)
        low_c, high_c = c * 0xCD9E8D57, tl.umulhi(c, 0xCD9E8D57)
        a, b = high_c ^ b ^ first_key, low_c
        c, d = high_a ^ d ^ second_key, low_a
        first_key += 0x9E3779B9
        second_key += 0xBB67AE85
    # Four words of a counter lie beside each other.
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    ends = tl.program_id(1) * 4 * LANES + tl.arange(0, 4 * LANES)
    of_row = out + row * num_blocks * 4
    tl.store(of_row + ends, tl.cast(words, tl.float32), mask=ends < 4 * num_blocks)


class TritonNoise:
    """See `specserve.noise.philox_floats`; made where `why_not` says nothing."""

    def __init__(self) -> None:
        self.version: str = triton.__version__
        self._kernel = triton.jit(word_floats)

    def __call__(
        self,
        blocks: Tensor,
        positions: Tensor,
        sample_words: Tensor,
        purpose_words: Tensor,
        seeds: Tensor,
    ) -> Tensor:
        num_rows, num_blocks = len(seeds), blocks.shape[1]
        out = torch.empty(num_rows, num_blocks, 4, dtype=torch.float32, device=seeds.device)
        if out.numel():
            rows = (row.contiguous() for row in (positions, sample_words, purpose_words, seeds))
            self._kernel[num_rows, -(-num_blocks // _LANES)](
                blocks.contiguous(),
                *rows,
                out,
                num_blocks,
                num_blocks if len(blocks) > 1 else 0,
                LANES=_LANES,
            )
        return out


def why_not() -> str:
    """What is in the way of Triton here, in words; empty if nothing is known to be."""
    return "" if triton is not None else f"cannot import triton ({_WHY_NOT})"


def trial(kernel: TritonNoise, device: torch.device) -> str:
    """What is wrong with `kernel` on `device`, in words: it is compiled there, and then compared.

    Empty where it makes the words of the definition.
    """
    words = (
        torch.arange(4 * _TRIAL_ROWS).view(4, _TRIAL_ROWS) * 0x1E3779B97F4A7C15
    )  # some bits of all words
    positions, sample_words, purpose_words, seeds = words.to(device)
    position, sample, purpose = (
        row & 0xFFFFFFFF for row in (positions, sample_words, purpose_words)
    )
    for blocks in (torch.arange(_LANES + 1)[None], torch.arange(3 * 5).view(3, 5)):
        given = (blocks.to(device), position, sample, purpose, seeds)
        try:
            found = kernel(*given)
            is_right = torch.equal(found, noise.philox_floats(*given))
        except Exception as error:  # noqa: BLE001 - of its compiler, which raises what it likes
            return f"triton {kernel.version}: {type(error).__name__}: {str(error)[:160]}"
        if not is_right:
            return f"triton {kernel.version} makes other words"
    return ""
