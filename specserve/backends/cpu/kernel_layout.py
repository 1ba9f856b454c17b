"""A kernel's arguments by address in one array of words, and what reads them: the way into a
forward.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.kernel_arguments import (
    Array,
    Batch,
    Cache,
    Code,
    KernelArguments,
    Shape,
    Sizes,
    Thread,
    Tokens,
    Weights,
    Workspace,
)
from specserve.backends.cpu.layer_kernels import run_parts
from specserve.backends.cpu.primitives import pointer

_Function = TypeVar("_Function", bound=Callable[..., object])

# A call's words are the address of what a team calls, the sizes, and of every array its address
# and its shape.
GROUPS = (Weights, Code, Batch, Cache, Tokens, Workspace)
ARRAY_WORDS = 6
NUM_SIZES = len(Sizes._fields)
FIRST_ARRAY = 1 + NUM_SIZES
LAYOUT_WORDS = FIRST_ARRAY + ARRAY_WORDS * sum(len(group._fields) for group in GROUPS)
_PLACES = {
    group: FIRST_ARRAY + ARRAY_WORDS * sum(len(before._fields) for before in GROUPS[:place])
    for place, group in enumerate(GROUPS)
}
_NOTHING = (0,) * (ARRAY_WORDS - 1)  # dimensions that an array has not
_KINDS = "".join(np.dtype(kind).char for kind in (np.float32, np.int64, np.uint8))


class KernelLayout:
    """Words: the address of what reads them, the sizes, every array's address and shape."""

    def __init__(self, entry: int) -> None:
        self._words = np.zeros(LAYOUT_WORDS, np.int64)
        self._words[0] = entry
        self._kept: dict[type, tuple[Array, ...]] = {}  # what addresses are of
        self.address = self._words.ctypes.data

    def set_sizes(self, sizes: Sizes) -> None:
        self._words[1:FIRST_ARRAY] = sizes

    def set_arrays(self, arrays: Weights | Code | Batch | Cache | Tokens | Workspace) -> None:
        """Of one kind. Raises TypeError for what is not laid out as kernels read it."""
        at, words = _PLACES[type(arrays)], []
        for array in arrays:
            if not array.flags.c_contiguous or array.dtype.char not in _KINDS:
                raise TypeError(f"kernels cannot read {array.dtype} {array.shape}")
            address, _ = array.__array_interface__["data"]  # `ctypes.data` takes twice as long
            words += (address, *array.shape, *_NOTHING[array.ndim :])
        self._words[at : at + len(words)] = words  # at once: each call takes a microsecond
        self._kept[type(arrays)] = arrays


# --- read ----------------------------------------------------------------------------------------


def _compiled(function: _Function) -> _Function:
    """As a decorator."""
    return compiled.compiled(function, is_kept=False)


carray: Any = None
to_fixed_tuple: Any = None
if compiled.numba is not None:
    from numba.np.unsafe.ndarray import to_fixed_tuple

    carray = compiled.numba.carray


@_compiled
def _array(layout: Array, place: int, ndim: int, dtype: Any) -> Any:  # noqa: ANN401
    """The array at `place` of all groups'."""
    at = FIRST_ARRAY + ARRAY_WORDS * place
    shape = to_fixed_tuple(layout[at + 1 : at + ARRAY_WORDS], ndim)
    return carray(pointer(layout[at]), shape, dtype)


@_compiled
def _weights_of(layout: Array) -> Weights:
    floats = np.float32
    return Weights(
        _array(layout, 0, 2, floats),
        _array(layout, 1, 1, floats),
        _array(layout, 2, 3, floats),
        _array(layout, 3, 1, floats),
        _array(layout, 4, 3, floats),
        _array(layout, 5, 3, np.int64),
        _array(layout, 6, 1, np.int64),
    )


@_compiled
def _shaped(layout: Array, place: int, dtype: Any, shape: Any) -> Any:  # noqa: ANN401
    """The first elements of a flat array."""
    return carray(pointer(layout[FIRST_ARRAY + ARRAY_WORDS * place]), shape, dtype)


@_compiled
def _workspace_of(layout: Array, sizes: Sizes, kept: Shape, blocks: Shape) -> Workspace:
    """kept: N, KV, D; blocks: threads, rows of a block."""
    num_tokens, num_kv_heads, size = kept
    per_kv, floats = sizes.num_heads // num_kv_heads, np.float32
    return Workspace(
        _shaped(layout, 19, floats, (num_tokens, sizes.outputs)),
        _array(layout, 20, 1, floats),
        _array(layout, 21, 1, floats),
        _shaped(layout, 22, floats, (num_kv_heads, num_tokens, per_kv, size)),
        _shaped(layout, 23, floats, (blocks[0], blocks[1], sizes.num_keys)),
        _shaped(layout, 24, np.int64, (2, num_tokens)),
        _array(layout, 25, 1, np.int64),
    )


def _reader(sources: int) -> Callable[..., None]:
    """What reads layouts. numba keeps it for what it encloses, too: these sources and no others."""

    def run_layout(address: Any, number: int, team: int) -> None:  # noqa: ANN401
        if not sources:
            return
        layout, words, floats = carray(address, LAYOUT_WORDS, np.int64), np.int64, np.float32
        sizes = Sizes(*to_fixed_tuple(layout[1:FIRST_ARRAY], NUM_SIZES))
        rows, attention = _array(layout, 7, 2, words), _array(layout, 8, 2, words)
        pages, shared = _array(layout, 11, 2, words), _array(layout, 12, 2, words)
        cache = Cache(_array(layout, 13, 5, np.uint8), _array(layout, 14, 5, np.uint8))
        x, hidden = _array(layout, 15, 2, floats), _array(layout, 16, 2, floats)
        kept = len(x), cache.values.shape[2], sizes.head_dim
        args = KernelArguments(
            sizes,
            _weights_of(layout),
            Code(rows, attention, _array(layout, 9, 1, words)),
            Batch(_array(layout, 10, 2, words), pages, shared),
            cache,
            Tokens(x, hidden, _array(layout, 17, 1, words), _array(layout, 18, 3, floats)),
            _workspace_of(layout, sizes, kept, (team, attention.shape[1])),
        )
        run_parts(args, Thread(number, team))

    return run_layout


@functools.cache
def entry() -> int:
    """Address of `run_parts` for a layout: (its address, thread, threads).

    Compiles, unless that was done before, which takes up to a minute.
    """
    return compiled.address_of(_reader(key_of(__file__)), "void(voidptr, int64, int64)")
