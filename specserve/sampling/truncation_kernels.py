"""top_k, top_p and min_p of one row, and the race of what they leave, compiled.

By torch a nucleus among 150,000 tokens takes longer than the forward of a small model: selections
of hundreds of tokens, and noise for all. Here what is likely is found by stripes: the largest of as
many stripes as tokens are looked for are that many tokens, so none that is less likely than the
least of these is among them. What is left is mostly few tokens, and only they run in the race.

`specserve.sampling.truncation` has the definition: thresholds, and masses that are summed in
integers. So nothing depends on the order in which tokens are met. Arithmetic is strict, arrays are
contiguous, and no index is checked here.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.noise_kernel import (
    NOBODY,
    exponential,
    is_bad,
    largest,
    power,
    word_floats,
)
from specserve.sampling.ranks import boundary, boundary_of_mass, orders_of

_Function = TypeVar("_Function", bound=Callable[..., object])

_STRIPE, _LANES = 256, 64  # tokens of a stripe, and of them looked at together
_NO_SIGN = np.float32(0)  # added to -0.0 it gives 0.0, whose order is another
_LEAST_POWER = np.float32(-87.0)  # of e, that is a weight
_FIRST_LOOK = 256  # likely tokens that a nucleus is looked for among, before it is among all


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept is below."""
    return compiled.compiled(function, is_kept=False)


# --- the likeliest -------------------------------------------------------------------------------


@_compiled
def _largest_of_stripes(values: np.ndarray) -> np.ndarray:
    """Of float32 [V], none of which is NaN: [V / stripe, rounded up]."""
    found = np.empty(-(-len(values) // _STRIPE), np.float32)
    lanes = np.empty(_LANES, np.float32)
    for stripe in range(len(found)):
        start = stripe * _STRIPE
        most, end = values[start], min(start + _STRIPE, len(values))
        whole = start + (end - start) // _LANES * _LANES
        lanes[:] = most
        for first in range(start, whole, _LANES):
            for lane in range(_LANES):
                value = values[first + lane]
                lanes[lane] = value if value > lanes[lane] else lanes[lane]
        for lane in range(_LANES):
            most = max(most, lanes[lane])
        for place in range(whole, end):
            most = max(most, values[place])
        found[stripe] = most
    return found


@_compiled
def _at_rank(values: np.ndarray, rank: int) -> np.float32:
    """The least of the `rank` largest of float32 [N]."""
    orders, least = np.empty(len(values), np.int64), np.float32(np.inf)
    orders_of(values, orders)
    least_order, _ = boundary(orders, rank)
    for i in range(len(values)):
        if orders[i] >= least_order:
            least = min(least, values[i])
    return least


@_compiled
def _likely(values: np.ndarray, stripes: np.ndarray, count: int, ids: np.ndarray) -> int:
    """ids[:n] = `count` of the largest or more, with all that tie, ascending; n.

    `count` is no more than there are stripes.
    """
    bound, num_found = _at_rank(stripes, count), 0
    for stripe in range(len(stripes)):
        if stripes[stripe] >= bound:
            for token in range(stripe * _STRIPE, min((stripe + 1) * _STRIPE, len(values))):
                if values[token] >= bound:
                    ids[num_found] = token
                    num_found += 1
    return num_found


# --- what stays possible -------------------------------------------------------------------------


@_compiled
def mass_of(weights: np.ndarray, unit: np.float32) -> np.int64:
    """In fixed point, see `fixed_point_mass`."""
    mass = np.int64(0)
    for weight in weights:
        mass += np.int64(weight * unit)
    return mass


@_compiled
def unit_of(num_tokens: int) -> np.float32:
    """Of masses, see `mass_bits`: their sum over so many tokens is no more than an int64 holds."""
    bits = 62
    while num_tokens >> (62 - bits):
        bits -= 1
    return np.float32(2.0**bits)


@_compiled
def weight_of(scaled: np.float32) -> np.float32:
    """e**scaled; zero of what nobody would ever draw."""
    return power(scaled) if scaled > _LEAST_POWER else np.float32(0)


@_compiled
def _all_tokens(ids: np.ndarray) -> int:
    for token in range(len(ids)):
        ids[token] = token
    return len(ids)


@_compiled
def _keep_by_rank(
    scaled: np.ndarray, stripes: np.ndarray, top_k: int, weights: np.ndarray, ids: np.ndarray
) -> int:
    """`keep_possible` by top_k alone."""
    num_found = _all_tokens(ids)
    if top_k <= len(stripes):
        num_found = _likely(scaled, stripes, top_k, ids)
    least, num_kept = _at_rank(scaled[ids[:num_found]], top_k), 0
    weights[:] = np.float32(0)
    for k in range(num_found):
        token = ids[k]
        if scaled[token] >= least:
            ids[num_kept] = token
            weights[token] = weight_of(scaled[token])  # pyright: ignore[reportArgumentType]
            num_kept += 1
    return num_kept


@_compiled
def _keep_all(scaled: np.ndarray, weights: np.ndarray, ids: np.ndarray) -> int:
    for token in range(len(scaled)):
        weights[token] = weight_of(scaled[token])  # pyright: ignore[reportArgumentType]
    return _all_tokens(ids)


@_compiled
def _nucleus(
    values: np.ndarray, weights: np.ndarray, ids: np.ndarray, needed: float, unit: np.float32
) -> int:
    """ids[:n] = the likeliest of these that hold `needed`, with what ties; 0 if all hold less."""
    orders, masses = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    orders_of(values[ids], orders)
    held = np.int64(0)
    for k in range(len(ids)):
        masses[k] = np.int64(weights[ids[k]] * unit)
        held += masses[k]
    if np.float64(held) < needed:
        return 0
    least, num_kept = boundary_of_mass(orders, masses, needed), 0
    for k in range(len(ids)):
        if orders[k] >= least:
            ids[num_kept] = ids[k]
            num_kept += 1
    return num_kept


@_compiled
def _keep_by_mass(
    scaled: np.ndarray,
    stripes: np.ndarray,
    top_p: float,
    weights: np.ndarray,
    ids: np.ndarray,
    num_kept: int,
) -> int:
    """`keep_possible` by top_p, of what top_k has left: ids[:num_kept]."""
    unit = unit_of(len(scaled))
    needed = np.float64(mass_of(weights, unit)) * top_p
    if num_kept == len(scaled) and len(stripes) >= _FIRST_LOOK:
        num_likely = _likely(scaled, stripes, _FIRST_LOOK, ids)
        num_found = _nucleus(scaled, weights, ids[:num_likely], needed, unit)
        if num_found:
            return num_found
        num_kept = _all_tokens(ids)
    return _nucleus(scaled, weights, ids[:num_kept], needed, unit)


@_compiled
def keep_possible(
    scaled: np.ndarray,
    top_k: int,
    top_p: float,
    min_p: float,
    weights: np.ndarray,
    ids: np.ndarray,
) -> int:
    """ids[:n] = the tokens that stay possible, weights [V] theirs and zero elsewhere; n.

    scaled float32 [V] are (logit - largest) / temperature; weights and ids int64 [V] are room.
    """
    stripes = _largest_of_stripes(scaled)
    if 0 < top_k < len(scaled):
        num_kept = _keep_by_rank(scaled, stripes, top_k, weights, ids)
    else:
        num_kept = _keep_all(scaled, weights, ids)
    if top_p < 1:
        num_kept = _keep_by_mass(scaled, stripes, top_p, weights, ids, num_kept)
    floor, num_left = np.float32(min_p), 0
    for k in range(num_kept):
        weight = weights[ids[k]]
        if weight >= floor and weight > np.float32(0):
            ids[num_left] = ids[k]
            num_left += 1
    kept = weights[ids[:num_left]]
    weights[:] = np.float32(0)
    for k in range(num_left):
        weights[ids[k]] = kept[k]
    return num_left


# --- the race ------------------------------------------------------------------------------------


@_compiled
def _winner(weights: np.ndarray, ids: np.ndarray, key: np.ndarray) -> int:
    """arg min of noise / weight over tokens that ascend, the first of equals; key uint64 [4, 1]."""
    blocks = (ids >> 2).astype(np.uint64).reshape(1, -1)
    bits = np.empty((1, len(ids), 4), np.float32)
    word_floats(blocks, key[0], key[1], key[2], key[3], bits)
    winner, fastest = ids[0], np.float32(np.inf)
    for k in range(len(ids)):
        token = ids[k]
        time = exponential(bits[0, k, token & 3]) / weights[token]
        if time < fastest:
            winner, fastest = token, time
    return winner


# --- what is called ------------------------------------------------------------------------------


def _entry(sources: int) -> Callable[..., None]:
    """numba keeps it for what it encloses, too: these sources and no others."""

    def race_of_possible(
        logits: np.ndarray,
        temperatures: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        keys: np.ndarray,
        winners: np.ndarray,
    ) -> None:
        """winners int64 [R]: of each row of logits float32 [R, V], `NOBODY` of a bad one.

        temperatures float32, top_k int64 (0: off), top_p and min_p float64, all [R]; keys uint64
        [4, R]: positions, sample words, purposes and seeds.
        """
        num_tokens = logits.shape[1] if sources else 0
        scaled, weights = np.empty(num_tokens, np.float32), np.empty(num_tokens, np.float32)
        ids = np.empty(num_tokens, np.int64)
        for row in range(len(logits)):
            own = logits[row]
            most, temperature = largest(own), temperatures[row]
            if is_bad(own, most):
                winners[row] = NOBODY
                continue
            for token in range(num_tokens):
                scaled[token] = (own[token] - most) / temperature + _NO_SIGN
            num_kept = keep_possible(scaled, top_k[row], top_p[row], min_p[row], weights, ids)
            winners[row] = _winner(weights, ids[:num_kept], keys[:, row : row + 1].copy())

    return compiled.compiled(race_of_possible)


race_of_possible = _entry(key_of(__file__))


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("truncated laws are raced", race_of_possible, _run)


def _run() -> None:
    keys, winners = np.ones((4, 2), np.uint64), np.empty(2, np.int64)
    floats, ints = np.ones(2, np.float64), np.ones(2, np.int64)
    logits = np.ones((2, 5), np.float32)
    race_of_possible(logits, np.ones(2, np.float32), ints, floats, floats, keys, winners)
