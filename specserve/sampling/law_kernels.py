"""Draft laws and the ratio test, compiled: what torch makes dozens of operations of, row by row.

Arithmetic is strict, so a row has the same outcome in any batch. Arrays are contiguous; no index is
checked here, who calls knows what there is. `specserve.sampling.drawing` has the definition of the
draws, `specserve.sampling.verification.verify` of the test; tests hold them against each other.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.noise_kernel import (
    exponential,
    first_of,
    is_bad,
    largest,
    power,
    word_floats,
)
from specserve.sampling.ranks import boundary, orders_of
from specserve.sampling.truncation_kernels import keep_possible, mass_of, unit_of, weight_of

_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    """As a decorator; what is kept is below."""
    return compiled.compiled(function, is_kept=False)


# --- the race of the likeliest -------------------------------------------------------------------

_PAD_ID = 2**31 - 1  # that of `specserve.sampling.draft_law`
_LEAST_POWER = np.float32(-87.0)  # of e, that is a weight


@_compiled
def _find_likeliest(logits: np.ndarray, ids: np.ndarray, orders: np.ndarray) -> np.float32:
    """ids int64 [M] = those of the largest logits [V], ascending; the largest of all.

    Of equals the first ones. orders int64 [V] is room. NaN where a logit is no number.
    """
    if not orders_of(logits, orders):
        return np.float32(np.nan)
    least, num_equal = boundary(orders, len(ids))
    most, count = np.float32(-np.inf), 0
    for token in range(len(logits)):
        order = orders[token]
        if order > least or (order == least and num_equal > 0):
            num_equal -= order == least
            most = max(most, logits[token])
            ids[count] = token
            count += 1
    return most


@_compiled
def draw_of_likeliest(
    logits: np.ndarray,
    scale: np.float32,
    noise: np.ndarray,
    ids: np.ndarray,
    probs: np.ndarray,
    orders: np.ndarray,
) -> int:
    """Truncate a law to its M likeliest tokens, renormalise it, and draw from it: the token.

    logits float32 [V]; scale float32, infinite at temperature 0; noise float32 [M], by place in the
    law. ids int64 [M] and probs float32 [M] become a `DraftLaw`. orders int64 [V] is room. -1 if
    there is no law.
    """
    num_kept = len(ids)
    most = _find_likeliest(logits, ids, orders)
    if not np.isfinite(most):
        return -1
    total, place = 0.0, 0
    for k in range(num_kept):
        gap = logits[ids[k]] - most
        scaled = gap * scale if gap < np.float32(0) else np.float32(0)
        weight = power(scaled) if scaled > _LEAST_POWER else np.float32(0)  # pyright: ignore[reportArgumentType]
        probs[k] = weight
        total += weight
    winner, fastest = 0, np.float32(np.inf)
    for k in range(num_kept):
        prob = np.float32(probs[k] / total)
        probs[k] = np.float32(0)
        if prob > np.float32(0):
            ids[place], probs[place] = ids[k], prob
            time = noise[place] / prob
            if time < fastest:
                winner, fastest = place, time
            place += 1
    ids[place:] = _PAD_ID
    return ids[winner]


@_compiled
def _race_of_likeliest(
    logits: np.ndarray,
    scales: np.ndarray,
    noise: np.ndarray,
    ids: np.ndarray,
    probs: np.ndarray,
    winners: np.ndarray,
) -> bool:
    """`draw_of_likeliest` of R rows; winners int64 [R] are tokens. False if a row has no law."""
    orders = np.empty(logits.shape[1], np.int64)
    for row in range(len(logits)):
        winners[row] = draw_of_likeliest(
            logits[row], scales[row], noise[row], ids[row], probs[row], orders
        )
        if winners[row] < 0:
            return False
    return True


# --- the ratio test ------------------------------------------------------------------------------

_LEAST_RESIDUAL = np.float32(2.0**-64)  # as in `specserve.sampling.verification.ratio`
_MOST_EXCESS = 1e-4  # as in `specserve.sampling.draft_law`


class RatioRows(NamedTuple):
    """B rows with N logits rows, D laws of at most M tokens: see `verify`."""

    starts: np.ndarray  # int64 [B]
    verify_lens: np.ndarray  # int64 [B]
    drafted: np.ndarray  # int64 [N]
    laws: np.ndarray  # int64 [N], which of the laws a logits row has that judges a drafted token
    law_ids: np.ndarray  # int64 [D, M]
    law_probs: np.ndarray  # float32 [D, M]
    temperatures: np.ndarray  # float32 [N]
    cuts: np.ndarray  # float64 [N, 3]: top_k, top_p and min_p; 0, 1 and 0 are off
    uniforms: np.ndarray  # float32 [N]
    keys: np.ndarray  # uint64 [4, N], of the next token: positions, sample and purpose words, seeds


class RatioOutcomes(NamedTuple):
    """What `VerificationOutcomes` has."""

    num_accepted: np.ndarray  # int64 [B]
    next_tokens: np.ndarray  # int64 [B]
    flags: np.ndarray  # bool [B, 3]: bad, broken, spoiled


@_compiled
def _chance(ids: np.ndarray, probs: np.ndarray, token: int, num_tokens: int) -> np.float32:
    """What a law says of a token; 0 where it is none, or calls the token impossible."""
    total, found, before = 0.0, np.float32(0), -1
    for k in range(len(ids)):
        if ids[k] == _PAD_ID:
            if probs[k] != np.float32(0):
                return np.float32(0)
        elif not (before < ids[k] < num_tokens and probs[k] > np.float32(0)):
            return np.float32(0)
        elif ids[k] == token:
            found = probs[k]
        before = ids[k]
        total += probs[k]
    return found if abs(total - 1.0) <= _MOST_EXCESS else np.float32(0)


class _Room(NamedTuple):
    """For one law."""

    weights: np.ndarray  # float32 [V]
    scaled: np.ndarray  # float32 [V]
    ids: np.ndarray  # int64 [V]


@_compiled
def _weigh(logits: np.ndarray, temperature: np.float32, cut: np.ndarray, room: _Room) -> float:
    """room.weights = exp((logit - largest) / temperature), zero where it is cut.

    Their sum in fixed point; 0 of a bad row. cut float64 [3]: top_k, top_p, min_p.
    """
    most = largest(logits)
    if is_bad(logits, most):
        return 0.0
    num_tokens, unit = len(logits), unit_of(len(logits))
    if cut[0] > 0 or cut[1] < 1 or cut[2] > 0:
        for token in range(num_tokens):
            room.scaled[token] = (logits[token] - most) / temperature + np.float32(0)  # no -0.0
        keep_possible(room.scaled, int(cut[0]), cut[1], cut[2], room.weights, room.ids)
    else:
        for token in range(num_tokens):
            room.weights[token] = weight_of((logits[token] - most) / temperature)
    return np.float64(mass_of(room.weights, unit)) / np.float64(unit)


@_compiled
def _leave_residual(weights: np.ndarray, ids: np.ndarray, probs: np.ndarray) -> None:
    """(p - q)+ in place of p, unless nothing is left of it."""
    left, most = weights.copy(), np.float32(0)
    for k in range(len(ids)):
        if ids[k] != _PAD_ID:
            left[ids[k]] = max(left[ids[k]] - probs[k], np.float32(0))
    for token in range(len(left)):
        most = max(most, left[token])
    if most >= _LEAST_RESIDUAL:
        weights[:] = left


@_compiled
def _winner(weights: np.ndarray, key: np.ndarray, bits: np.ndarray) -> int:
    """arg min of noise / weight, the first of equals; a weight of zero never wins."""
    blocks = np.arange(bits.shape[1]).astype(np.uint64).reshape(1, -1)
    word_floats(blocks, key[0], key[1], key[2], key[3], bits)
    noise, speeds = bits.reshape(-1), np.empty(len(weights), np.float32)
    for token in range(len(weights)):
        speeds[token] = -(exponential(noise[token]) / weights[token])
    return first_of(speeds, largest(speeds))


@_compiled
def _judge_by_ratio(logits: np.ndarray, rows: RatioRows, found: RatioOutcomes) -> None:
    """The ratio test of every row of logits float32 [N, V], and the tokens that follow."""
    num_tokens = logits.shape[1]
    weights, scaled = np.empty(num_tokens, np.float32), np.empty(num_tokens, np.float32)
    room = _Room(weights, scaled, np.empty(num_tokens, np.int64))
    bits = np.empty((1, (num_tokens + 3) // 4, 4), np.float32)
    chances = np.empty(len(logits), np.float32)  # of each drafted token, under its own law
    for row in range(len(rows.starts)):
        start, end = rows.starts[row], rows.starts[row] + rows.verify_lens[row]
        is_broken = is_spoiled = False
        for place in range(start, end):
            law, token = rows.laws[place], rows.drafted[place]
            chances[place] = _chance(rows.law_ids[law], rows.law_probs[law], token, num_tokens)
            is_broken |= chances[place] == np.float32(0)
        place, stands, total = start, True, 0.0
        while stands:
            total = _weigh(logits[place], rows.temperatures[place], rows.cuts[place], room)  # pyright: ignore[reportArgumentType]
            stands = place < end and total > 0.0 and chances[place] > np.float32(0)
            if stands:
                prob = np.float32(weights[rows.drafted[place]] / total)
                ratio = min(np.float64(prob) / np.float64(chances[place]), 1.0)
                stands = np.float64(rows.uniforms[place]) < ratio
            place += stands
        is_stuck = total == 0.0
        for rest in range(place, end + 1):
            is_spoiled |= is_bad(logits[rest], largest(logits[rest]))
        found.num_accepted[row], found.next_tokens[row] = place - start, -1
        found.flags[row, 0], found.flags[row, 1], found.flags[row, 2] = (
            is_stuck,
            is_broken,
            is_spoiled,
        )
        if is_stuck:
            continue
        for token in range(num_tokens):
            weights[token] = np.float32(weights[token] / total)
        if place < end and chances[place] > np.float32(0):
            law = rows.laws[place]
            _leave_residual(weights, rows.law_ids[law], rows.law_probs[law])
        found.next_tokens[row] = _winner(weights, rows.keys[:, place : place + 1].copy(), bits)


# --- what is called ------------------------------------------------------------------------------


def _entries(
    sources: int,
) -> tuple[Callable[..., bool], Callable[..., bool], Callable[..., None]]:
    """numba keeps them for what they enclose, too: these sources and no others."""

    def likeliest(logits: np.ndarray, ids: np.ndarray) -> bool:
        """ids int64 [R, M] = those of the largest of logits float32 [R, V], ascending.

        False where one is no number.
        """
        if not sources:
            return False
        orders = np.empty(logits.shape[1], np.int64)
        for row in range(len(logits)):
            most = _find_likeliest(logits[row], ids[row], orders)
            if most != most:
                return False
        return True

    def race_of_likeliest(
        logits: np.ndarray,
        scales: np.ndarray,
        noise: np.ndarray,
        ids: np.ndarray,
        probs: np.ndarray,
        winners: np.ndarray,
    ) -> bool:
        return sources != 0 and _race_of_likeliest(logits, scales, noise, ids, probs, winners)

    def by_ratio(logits: np.ndarray, rows: RatioRows, found: RatioOutcomes) -> None:
        if sources:
            _judge_by_ratio(logits, rows, found)

    whole = compiled.compiled
    return whole(likeliest), whole(race_of_likeliest), whole(by_ratio)


find_likeliest, race_of_likeliest, judge_by_ratio = _entries(key_of(__file__))


@functools.cache
def are_usable() -> bool:
    """Whether numba is here and works. Compiles, unless that was done before."""
    return compiled.works("laws are made", judge_by_ratio, _run)


def _run() -> None:
    winners = np.empty(2, np.int64)
    few, ids = np.ones((2, 3), np.float32), np.empty((2, 3), np.int64)
    logits, scales = np.ones((2, 5), np.float32), np.ones(2, np.float32)
    find_likeliest(logits, ids)
    race_of_likeliest(logits, scales, few, ids, few.copy(), winners)
    ints, floats, keys = np.zeros(1, np.int64), np.ones(1, np.float32), np.ones((4, 1), np.uint64)
    laws = np.zeros((1, 3), np.int64), np.ones((1, 3), np.float32)
    cuts = np.ones((1, 3), np.float64)
    rows = RatioRows(ints, ints, ints, ints, *laws, floats, cuts, floats, keys)
    flags = np.empty((1, 3), np.bool_)
    judge_by_ratio(logits[:1], rows, RatioOutcomes(ints.copy(), ints.copy(), flags))
