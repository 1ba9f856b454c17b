"""Forwards of a target on a CPU, each of them one compiled call: see `layer_kernels`.

With several ranks it is one call a part of the model, and between two parts the ranks close their
shares of a product as they always do.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specserve.backends.cpu import layer_kernels
from specserve.backends.cpu import weights as compiled_weights
from specserve.backends.cpu.codegen.attention_code import Shape, code
from specserve.backends.cpu.codegen.softmax_code import LANES as VECTOR
from specserve.backends.cpu.kernel_arguments import (
    Batch,
    Cache,
    Code,
    Sizes,
    Tokens,
    Weights,
    Workspace,
)
from specserve.backends.cpu.kernel_layout import KernelLayout, entry
from specserve.backends.cpu.kv_cache import TiledKVCache
from specserve.backends.cpu.layer_kernels import LANES
from specserve.backends.cpu.machine_code import Functions, Team, host_machine
from specserve.models.attention import AttentionBatch
from specserve.models.kv_cache import NULL_BLOCK, CacheShape
from specserve.models.transformer import EMBEDDING_TAP, Transformer


class AttentionKernels:
    """For heads of one size and tiles of some keys."""

    def __init__(self, shape: Shape) -> None:
        """Compiles them, in about a tenth of a second. Raises RuntimeError, which is LLVM's."""
        self._code = Functions(code(shape))
        self.most_rows = shape.most_rows
        self.soften = self._code.address("soften")
        self.keep_key, self.keep_value = map(self._code.address, ("keep_key", "keep_value"))
        self.by_size = np.array(  # int64 [2, n]: `score_<n>` and `weigh_<n>`
            [
                [self._code.address(f"{name}_{size}") for size in range(1, shape.most_rows + 1)]
                for name in ("score", "weigh")
            ]
        )


@functools.cache
def attention_kernels(head_dim: int, tile: int, num_bytes: int) -> AttentionKernels:
    """`num_bytes`: of a number that is kept, see `Shape`."""
    machine = host_machine()
    assert machine is not None, "who wants these has products, which need one"
    # A vector of sums is two registers where vectors are half as wide.
    columns = math.gcd(head_dim, VECTOR)
    return AttentionKernels(Shape(head_dim, tile, columns, machine.most_rows, num_bytes))


Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_SPARE = 8  # times the room needed that is kept from a forward before, ...
_LITTLE = 16 * 1024 * 1024  # ... and as many elements are kept in any case
_MARGIN = 4  # a part of it more is taken, so that growing contexts do not take some every time


class CompiledForward:
    """A model of compiled products, over a cache of its own."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        num_spare_positions: int = 0,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        """So many positions behind the model's last are taken for that.

        `kv_dtype`: keys and values are kept in it, float32 or bfloat16.
        """
        spec, num_heads = model.config, len(model.heads.queries)
        self._model = model  # which owns what the weights are views of
        self.embedding: Floats = model.embedding.numpy()  # [V, E]
        shape = CacheShape(
            num_layers=spec.num_layers,
            num_kv_heads=len(model.heads.kv),
            head_dim=spec.head_dim,
            num_blocks=num_blocks,
            block_size=block_size,
        )
        self.cache = TiledKVCache(shape, dtype=kv_dtype)
        team = Team.of_torch()
        assert team is not None, "compiled products have asked"
        self._team = team
        attention = attention_kernels(spec.head_dim, self.cache.tile, self.cache.keys.itemsize)
        products, rows = compiled_weights.products(model.layers)
        layers = range(spec.num_layers)
        widths = [len(model.parallel.share(spec.layer_width(index))) for index in layers]
        self._widths = np.array(widths)
        panel = rows[0].panel
        outputs = products[..., 2].max(axis=0) * panel  # of each of a layer's products
        self._shape = _Shape(
            panel=panel,
            num_heads=num_heads,
            outputs=max(spec.hidden_size, int(outputs[1::2].max())),
            inner=max(*widths, num_heads * spec.head_dim),
            wide=int(outputs[::2].max()),
            queries=num_heads * spec.head_dim,
            block_rows=attention.most_rows,
        )
        self._workspace: Workspace | None = None
        self._num_keys = 0
        self.num_computed = 0
        self._run = _ENTRY(entry())
        self._layout = layout = KernelLayout(entry())
        norms, rotary = compiled_weights.norms(model), model.rotary.table.numpy()
        if num_spare_positions:
            rotary = np.concatenate([rotary, rotary[-1:].repeat(num_spare_positions, axis=0)])
        functions = np.array([kernels.addresses for kernels in rows])
        kept = attention.keep_key, attention.keep_value
        others = np.array([attention.soften, *kept, team.barrier])
        layout.set_arrays(Weights(*norms, rotary, products, self._widths))
        layout.set_arrays(Code(functions, attention.by_size, others))
        layout.set_arrays(Cache(*self.cache.as_bytes()))

    def plan(self, batch: AttentionBatch) -> None:
        """Lay out one forward of `batch`."""
        rows = np.zeros((len(batch.num_tokens), 4), dtype=np.int64)
        rows[:, 0], rows[:, 1] = batch.num_tokens, batch.context_lens
        nothing = np.empty((len(rows), 0), dtype=np.int64)
        self.lay_out(Batch(rows, block_table(batch.block_tables), nothing))

    def lay_out(self, batch: Batch, num_more: int = 0) -> None:
        """Like `plan`; `batch.rows` may grow by so many positions from forward to forward."""
        self._num_keys = _num_keys(batch, num_more)
        self._layout.set_arrays(batch)

    def run(self, token_ids: Tensor, taps: tuple[int, ...] = ()) -> tuple[Tensor, list[Tensor]]:
        x = self._embedded(token_ids.numpy())
        layers = [tap for tap in taps if tap != EMBEDDING_TAP]
        if any(not 0 <= layer < len(self._model.layers) for layer in layers):
            raise KeyError(f"taps {taps} of {len(self._model.layers)} layers")
        found: dict[int, Tensor] = {}
        if EMBEDDING_TAP in taps:
            found[EMBEDDING_TAP] = torch.from_numpy(x.copy())
        if not len(x):
            raise ValueError("a forward of no tokens")
        self.num_computed = len(x)
        tapped = np.empty((len(layers), *x.shape), np.float32)
        tokens = Tokens(x, np.empty_like(x), np.array(layers, dtype=np.int64), tapped)
        self._layout.set_arrays(tokens)
        self._make_workspace(len(x))
        if torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
            with torch.profiler.record_function("specserve::layers"):
                self._run_parts(len(x))
        else:
            self._run_parts(len(x))
        found |= zip(layers, torch.from_numpy(tapped), strict=True)
        return torch.from_numpy(tokens.hidden), [found[tap] for tap in taps]

    def _embedded(self, token_ids: Integers) -> Floats:
        """[N, E], a copy."""
        if len(token_ids) and token_ids.min() < 0:  # which numpy would count from the end
            raise IndexError(f"token {token_ids.min()} is not there")
        return self.embedding.take(token_ids, axis=0)  # torch dispatches longer

    def _make_workspace(self, num_tokens: int) -> None:
        """Kept from forward to forward: fresh pages of memory cost more than what is written."""
        shape = self._shape
        wanted = (
            num_tokens * shape.outputs,
            num_tokens * shape.inner,
            num_tokens * shape.wide,
            num_tokens * shape.queries,
            torch.get_num_threads() * shape.block_rows * self._num_keys,
            num_tokens * 2,
            1,
        )
        kept = self._workspace
        if kept and all(_serves(len(a), n) for a, n in zip(kept, wanted, strict=True)):
            return
        *floats, places, status = (size + size // _MARGIN for size in wanted)
        rooms = [np.empty(size, np.float32) for size in floats]
        self._workspace = Workspace._make(
            [*rooms, np.empty(places, np.int64), np.empty(status, np.int64)]
        )
        self._layout.set_arrays(self._workspace)

    def _run_parts(self, num_tokens: int) -> None:
        layers = self._model.layers
        num_parts = 2 * len(layers) + 1
        if self._model.parallel.size == 1:
            return self._call(0, num_parts)
        assert self._workspace is not None
        added = self._workspace.added[: num_tokens * self._shape.outputs].reshape(num_tokens, -1)
        for part in range(num_parts):
            self._call(part, part + 1)
            if part + 1 < num_parts:
                layer, is_gate = layers[part // 2], part % 2
                width = self._widths[part // 2] if is_gate else self._shape.queries
                inner = self._workspace.inner[: num_tokens * width].reshape(num_tokens, width)
                closed = (layer.down_proj if is_gate else layer.o_proj)(torch.from_numpy(inner))
                added[:, : closed.shape[1]] = closed.numpy()

    def _sizes(self, first_part: int, end_part: int) -> Sizes:
        shape, block_size = self._shape, self.cache.block_size
        of_token = shape.panel, shape.num_heads, self._num_keys, shape.outputs
        of_pages = self.cache.head_dim, self.cache.tile
        return Sizes(first_part, end_part, block_size, *of_token, *of_pages)

    def _call(self, first_part: int, end_part: int) -> None:
        layout, num_threads = self._layout, torch.get_num_threads()
        layout.set_sizes(self._sizes(first_part, end_part))
        assert self._workspace is not None
        status = self._workspace.status
        status[0] = layer_kernels.PENDING
        if num_threads == 1:
            self._run(layout.address, 0, 1)
        else:
            self._team.run(layout.address, num_threads)
        if status[0] == layer_kernels.REFUSED:
            raise IndexError("the batch names tokens, positions or blocks that are not there")
        if status[0] != layer_kernels.DONE:
            raise RuntimeError("the compiled forward broke off")


def _num_keys(batch: Batch, num_more: int) -> int:
    """Whole lanes of positions that a token may see, after `num_more` more of each row."""
    rows: list[list[int]] = batch.rows.tolist()  # numpy takes longer for a few
    return _whole_lanes(
        max(shared + _whole_lanes(end - shared + num_more) for _, end, shared, _ in rows)
    )


def _serves(num_kept: int, num_wanted: int) -> bool:
    return num_wanted <= num_kept <= max(_SPARE * num_wanted, _LITTLE)


def _whole_lanes(count: int) -> int:
    return -(-count // LANES) * LANES


def block_table(rows: Sequence[Integers]) -> Integers:
    """Block tables of different lengths as one."""
    if len(rows) == 1:
        return rows[0][None].copy()
    lens = [len(blocks) for blocks in rows]
    table = np.full((len(rows), max(lens)), NULL_BLOCK, dtype=np.int64)
    for place, (blocks, length) in enumerate(zip(rows, lens, strict=True)):
        table[place, :length] = blocks
    return table


class _Shape(NamedTuple):
    """Of one token in a model."""

    panel: int
    num_heads: int
    outputs: int
    inner: int
    wide: int
    queries: int  # elements of all heads
    block_rows: int
