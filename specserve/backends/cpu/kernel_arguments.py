"""What compiled forwards are told: see `layer_kernels`.

N tokens of B rows; L layers of H query heads and KV key heads of D elements, G = H / KV, this
rank's; E the hidden size. Arrays are contiguous, and float32 unless said otherwise.
"""

from typing import NamedTuple

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]


class Weights(NamedTuple):
    """Of L layers, this rank's share."""

    norms: Array  # [2 L + 1, E], of every part
    epsilons: Array  # [2 L + 1]
    head_norms: Array  # [L, H + KV, D], or [L, 0, D] for none
    head_epsilons: Array  # [L]
    rotary: Array  # [positions, 2, D]: cosines, signed sines
    products: Array  # int64 [L, 4, 4], as of `multiply`
    widths: Array  # int64 [L]: gates


class Code(NamedTuple):
    """Addresses of machine code, all int64."""

    rows: Array  # [storages, n] of `row_code`
    attention: Array  # [2, n]: `score_<n>` and `weigh_<n>` of `attention_code`
    # [4]: `soften`, `keep_key` and `keep_value` of it, and what waits for all threads of a team
    others: Array


class Batch(NamedTuple):
    """What a forward computes, all int64."""

    # [B, 4]: new tokens; the end of their context; how much of its beginning lies in pages that are
    # shared; and whether each of them sees all of it, those behind it too, or what is before it.
    rows: Array
    pages: Array  # [B, P]: where what is not shared is kept
    shared: Array  # [B, S]: where the rest is


class Cache(NamedTuple):
    """Keys lie in tiles, so that some of them are a vector. Bytes: only machine code knows numbers.

    The last dimension of both is that of the numbers times the bytes that one of them has.
    """

    keys: Array  # uint8 [L, pages, KV, tiles of a page * D, tile]
    values: Array  # uint8 [L, pages, KV, page size, D]


class Tokens(NamedTuple):
    """What goes in and comes out."""

    x: Array  # [N, E] residuals: embeddings at first, overwritten
    hidden: Array  # [N, E]: x after the norm of the last part
    taps: Array  # int64 [T]: layers
    tapped: Array  # [T, N, E]: residuals behind them


class Workspace(NamedTuple):
    """What a forward is computed in: flat, and at least as large as said here."""

    added: Array  # [N, outputs]: what is to be added to x
    inner: Array  # what the last part ended with, [N, H * D] or [N, gates]
    wide: Array  # [N, outputs of a layer's first or third product]
    queries: Array  # [KV, N, G, D]
    scores: Array  # [threads, n, keys]
    places: Array  # int64 [2, N]: positions and slots
    status: Array  # int64 [1]: what became of the call


class Sizes(NamedTuple):
    """Of a call."""

    first_part: int
    end_part: int
    page_size: int
    panel: int  # columns of a product's weight
    num_heads: int
    num_keys: int  # whole LANES
    outputs: int  # columns of `added`
    head_dim: int  # D
    tile: int  # keys


class KernelArguments(NamedTuple):
    """All of it, as kernels pass it on."""

    sizes: Sizes
    weights: Weights
    code: Code
    batch: Batch
    cache: Cache
    tokens: Tokens
    workspace: Workspace


class Thread(NamedTuple):
    """Which of how many."""

    number: int
    team: int
