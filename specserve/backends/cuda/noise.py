"""`specserve.noise.philox_floats` on CUDA devices: by one kernel of Triton where that works.

Else captured, for the definition is eighty small kernels.
"""

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve import noise
from specserve.backends.cuda import graphs, triton_noise
from specserve.backends.cuda.graphs import CapturedGraphs, padded
from specserve.backends.cuda.triton_noise import TritonNoise

_MOST_LANES = 1 << 19  # whose kernels take no longer than beginning them does


def philox_floats(
    blocks: Tensor, positions: Tensor, sample_words: Tensor, purpose_words: Tensor, seeds: Tensor
) -> Tensor:
    """As `specserve.noise.philox_floats`; within another graph it is part of that."""
    if _KERNELS:
        return _KERNELS[-1](blocks, positions, sample_words, purpose_words, seeds)
    num_rows = padded(max(1, len(seeds)))
    num_lanes = num_rows * blocks.shape[1] if len(seeds) else 0
    if graphs.are_used(seeds.device) and 0 < num_lanes <= _MOST_LANES:
        key = _Shape(num_rows, blocks.shape[1], len(blocks) == 1, seeds.device)
        rows = (positions, sample_words, purpose_words, seeds)
        made = _graphs().run(key, lambda each: each.fill(rows, blocks))
        if made is not None:
            return made.bits[: len(seeds)].clone()  # which callers write to
    return noise.philox_floats(blocks, positions, sample_words, purpose_words, seeds)


def choose(device: torch.device) -> str:
    """Who makes this process's noise on CUDA devices from now on, in words. Compiles and tries."""
    register()
    _KERNELS.clear()
    obstacle = triton_noise.why_not()
    if not obstacle:
        kernel = TritonNoise()
        obstacle = triton_noise.trial(kernel, device)
        if not obstacle:
            _KERNELS.append(kernel)
            return f"triton {kernel.version}'s"
        _LOG.warning("noise is torch's, which is slower: %s", obstacle)
    return f"torch's: {obstacle}"


def register() -> None:
    """Let this process make noise on CUDA devices so."""
    if _REGISTERED:
        return
    library = torch.library.Library("specserve", "IMPL")
    library.impl("philox_floats", philox_floats, "CUDA")
    _REGISTERED.append(library)


_LOG = logging.getLogger(__name__)
_KERNELS: list[TritonNoise] = []  # the chosen one, if any
_REGISTERED: list[torch.library.Library] = []  # an implementation goes with its library


class _Shape(NamedTuple):
    num_rows: int
    num_blocks: int
    share_blocks: bool  # one row of them for all
    device: torch.device


class _Bits:
    """What is captured: the words of a shape."""

    def __init__(self, shape: _Shape) -> None:
        self._rows = torch.zeros(4, shape.num_rows, dtype=torch.int64, device=shape.device)
        num_rows = 1 if shape.share_blocks else shape.num_rows
        self._blocks = self._rows.new_zeros(num_rows, shape.num_blocks)

    def fill(self, rows: Sequence[Tensor], blocks: Tensor) -> None:
        """What is behind them belongs to some rows before, and is made for nobody."""
        torch.stack(list(rows), out=self._rows[:, : len(rows[0])])
        self._blocks[: len(blocks)].copy_(blocks)

    def __call__(self) -> None:
        self.bits = noise.philox_floats(self._blocks, *self._rows.unbind(0))


@functools.cache
def _graphs() -> CapturedGraphs[_Shape, _Bits]:
    return CapturedGraphs(_Bits)
