"""A step of chains, compiled: a forward, the head, confidences, draws, all chains in one call.

By torch a step of few chains is thirty small operations around what it computes, which is as long.
Arrays are contiguous; no index is checked here, who calls knows what there is. numba keeps the
result for the sources of all that it is made of.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from draft_node import kernels
from draft_node.kernels import exp, features
from specserve import address_call, compiled, noise_kernel
from specserve.address_call import call
from specserve.decoding import law_kernels, race
from specserve.decoding.law_kernels import draw_of_likeliest
from specserve.decoding.race import COUPLED, GREEDY, Race
from specserve.model import forward_job, layer_kernels
from specserve.model.forward_job import Thread
from specserve.model.layer_kernels import DONE, PENDING, multiply
from specserve.noise_kernel import first_of, largest

Array = np.ndarray
_Function = TypeVar("_Function", bound=Callable[..., object])

MADE, BROKE_OFF, NO_LAW = range(3)  # what became of a step
_END = 1  # of `Batch.rows`


class Forward(NamedTuple):
    """As `compiled_forward.Repeated`, of one token a chain."""

    words: Array  # int64 [2]
    status: Array  # int64 [1]
    embedding: Array  # [V, E]
    x: Array  # [B, E]
    hidden: Array  # [B, E]
    rows: Array  # int64 [B, 4]: of the batch


class Head(NamedTuple):
    """As `multiply` takes it."""

    product: Array  # int64 [4]
    functions: Array  # int64 [1, n]


class Confidence(NamedTuple):
    """As of `FittedLawConfidence`: sigmoid(bias + scale * weights . features), by slot."""

    weights: Array  # [2]
    biases: Array  # [G], or none at all
    scales: Array  # [G]


class Drawn(NamedTuple):
    """What steps write, slot by slot."""

    token_ids: Array  # int64 [G, B]
    confidences: Array  # [G, B]
    logits: Array  # [G, B, W], columns beyond the vocabulary being nothing; or one slot for all
    law_ids: Array  # int64 [G, B, M], of sampled ones
    law_probs: Array  # [G, B, M]


def part(function: _Function) -> _Function:
    """As a decorator, of what is part of something kept."""
    return compiled.compiled(function, is_kept=False)


@part
def _confidence(logits: Array, slot: int, by: Confidence) -> np.float32:
    log_most, entropy = features(logits)
    raw = by.weights[0] * log_most + by.weights[1] * entropy
    return np.float32(1) / (np.float32(1) + exp(-(by.biases[slot] + raw * by.scales[slot])))


@part
def draw(logits: Array, slot: int, chain: int, by: Race, drawn: Drawn, room: Array) -> int:
    """A token; -1 where a law to draw from is not to be had."""
    if by.kind == GREEDY:
        return first_of(logits, largest(logits))
    noise, scale = by.noise[by.places[chain, slot]], by.scales[chain]
    if by.kind == COUPLED:
        times, sign = room.view(np.float32)[: len(logits)], by.signs[chain]
        for token in range(len(logits)):
            times[token] = noise[token] * sign + logits[token] * scale
        return first_of(times, largest(times))
    law = drawn.law_ids[slot, chain], drawn.law_probs[slot, chain]
    return draw_of_likeliest(logits, scale, noise, law[0], law[1], room)


@part
def _finish(
    slot: int,
    hidden: Array,
    head: Head,
    sure: Confidence,
    draws: Race,
    drawn: Drawn,
    num_tokens: int,
) -> int:
    """Logits of hidden [B, E], and what is drawn from them."""
    by_chain = drawn.logits[min(slot, len(drawn.logits) - 1)]
    multiply(hidden, head.product, head.functions, by_chain, Thread(0, 1))
    room = np.empty(num_tokens, np.int64)
    for chain in range(len(by_chain)):
        logits = by_chain[chain][:num_tokens]
        if len(sure.biases):
            drawn.confidences[slot, chain] = _confidence(logits, slot, sure)
    for chain in range(len(by_chain)):
        logits = by_chain[chain][:num_tokens]
        token = draw(logits, slot, chain, draws, drawn, room)
        if token < 0:
            return NO_LAW
        drawn.token_ids[slot, chain] = token
    return MADE


@part
def _again(slot: int, forward: Forward, drawn: Drawn) -> bool:
    """The forward of the tokens that were drawn last; False if it broke off."""
    for chain in range(len(forward.x)):
        forward.x[chain] = forward.embedding[drawn.token_ids[slot - 1, chain]]
    forward.status[0] = PENDING
    call(forward.words[0], (forward.words[1], 0, 1))
    forward.rows[:, _END] += 1
    return forward.status[0] == DONE


def _entries(sources: int) -> tuple[Callable[..., int], Callable[..., int]]:
    """numba keeps them for what they enclose, too: these sources and no others."""

    def first_step(
        hidden: Array, head: Head, sure: Confidence, draws: Race, drawn: Drawn, num_tokens: int
    ) -> int:
        return _finish(0, hidden, head, sure, draws, drawn, num_tokens) if sources else NO_LAW

    def further_step(
        slot: int,
        forward: Forward,
        head: Head,
        sure: Confidence,
        draws: Race,
        drawn: Drawn,
        num_tokens: int,
    ) -> int:
        if not sources or not _again(slot, forward, drawn):
            return BROKE_OFF
        return _finish(slot, forward.hidden, head, sure, draws, drawn, num_tokens)

    return compiled.compiled(first_step), compiled.compiled(further_step)


MODULES = kernels, law_kernels, race, noise_kernel, layer_kernels, forward_job, address_call
_FILES = [Path(file) for file in (__file__, *(str(m.__file__) for m in MODULES))]
first_step, further_step = _entries(zlib.crc32(b"".join(file.read_bytes() for file in _FILES)) | 1)
