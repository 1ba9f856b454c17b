"""All steps of chains, compiled: forwards, the head, confidences, draws, and when to end.

By torch a step of few chains is thirty small operations around what it computes, which is as long.
Arrays are contiguous; no index is checked here, who calls knows what there is. numba keeps the
result for the sources of all that it is made of.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from specserve.backends.cpu import compiled
from specserve.backends.cpu.address_call import call
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.confidence_kernels import exp, features
from specserve.backends.cpu.noise_kernel import first_of, largest
from specserve.drafters.chain_worth import is_worth_it
from specserve.drafters.pass_clock import FURTHER, look
from specserve.models.forward_job import Thread
from specserve.models.layer_kernels import DONE, PENDING, multiply
from specserve.sampling.law_kernels import draw_of_likeliest
from specserve.sampling.race import COUPLED, GREEDY, Race
from specserve.sampling.shaping_kernels import ShapingRoom, room_for, shaped_row

Array = np.ndarray
_Function = TypeVar("_Function", bound=Callable[..., object])

# What became of a step: without a law nothing was drawn, without its token nothing computed.
MADE, BROKE_OFF, NO_LAW, NO_TOKEN = range(4)
_END = 1  # of `Batch.rows`
_MONOTONIC = 1  # the clock of `time.perf_counter`


class Passes(NamedTuple):
    """Forwards of B chains by address: the first one computes N tokens that enter, too."""

    words: Array  # int64 [3]: what runs a forward; the records of the first and of later ones
    status: Array  # int64 [1]
    embedding: Array  # [V, E]
    entering_ids: Array  # int64 [N]
    first_x: Array  # [N + B, E]
    first_hidden: Array  # [N + B, E]
    x: Array  # [B, E]
    hidden: Array  # [B, E]
    rows: Array  # int64 [B, 4]: of later ones' batch


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


class Ending(NamedTuple):
    """What chains end by: see `pass_clock` and `chain_worth`. All float64."""

    clock: Array  # [6]
    worth: Array  # [5]
    survivals: Array  # [B]
    chances: Array  # [B]


class Room(NamedTuple):
    """For one draw."""

    orders: Array  # int64 [V]
    shaping: ShapingRoom


class ChainJob(NamedTuple):
    """A draft call of B chains."""

    anchor_ids: Array  # int64 [B]
    passes: Passes
    head: Head
    sure: Confidence
    draws: Race
    drawn: Drawn
    ending: Ending


def part(function: _Function) -> _Function:
    """As a decorator, of what is part of something kept."""
    return compiled.compiled(function, is_kept=False)


@part
def _confidence(logits: Array, slot: int, by: Confidence) -> np.float32:
    log_most, entropy = features(logits)
    raw = by.weights[0] * log_most + by.weights[1] * entropy
    return np.float32(1) / (np.float32(1) + exp(-(by.biases[slot] + raw * by.scales[slot])))


@part
def room_of(num_tokens: int, by: Race) -> Room:
    return Room(np.empty(num_tokens, np.int64), room_for(num_tokens, by.fields))


@part
def draw(logits: Array, slot: int, chain: int, by: Race, drawn: Drawn, room: Room) -> int:
    """A token; -1 where a law to draw from is not to be had."""
    if len(by.fields.temperatures):
        drafted = drawn.token_ids[:slot, chain].copy()
        logits = shaped_row(logits, chain, drafted, by.fields, room.shaping)
    if by.kind == GREEDY:
        return first_of(logits, largest(logits))
    noise, scale = by.noise[by.places[chain, slot]], by.scales[chain]
    if by.kind == COUPLED:
        times, sign = room.orders.view(np.float32)[: len(logits)], by.signs[chain]
        for token in range(len(logits)):
            times[token] = noise[token] * sign + logits[token] * scale
        return first_of(times, largest(times))
    law = drawn.law_ids[slot, chain], drawn.law_probs[slot, chain]
    return draw_of_likeliest(logits, scale, noise, law[0], law[1], room.orders)


@part
def _look(
    slot: int, hidden: Array, head: Head, sure: Confidence, drawn: Drawn, num_tokens: int
) -> None:
    """Logits of hidden [B, E], and how sure they are."""
    by_chain = drawn.logits[min(slot, len(drawn.logits) - 1)]
    multiply(hidden, head.product, head.functions, by_chain, Thread(0, 1))
    if len(sure.biases):
        for chain in range(len(by_chain)):
            logits = by_chain[chain][:num_tokens]
            drawn.confidences[slot, chain] = _confidence(logits, slot, sure)


@part
def _draw(slot: int, draws: Race, drawn: Drawn, num_tokens: int, room: Room) -> int:
    """A token of every chain. The logits become those that they are drawn from."""
    by_chain = drawn.logits[min(slot, len(drawn.logits) - 1)]
    for chain in range(len(by_chain)):
        token = draw(by_chain[chain][:num_tokens], slot, chain, draws, drawn, room)
        if token < 0:
            return NO_LAW
        drawn.token_ids[slot, chain] = token
    # All of them, or torch would shape again what is shaped.
    for chain in range(len(room.shaping.rows)):
        by_chain[chain][:num_tokens] = room.shaping.rows[chain]
    return MADE


@part
def _are_there(token_ids: Array, num_tokens: int) -> bool:
    for token in token_ids:  # noqa: SIM110 - this is compiled
        if not 0 <= token < num_tokens:
            return False
    return True


@part
def _pass(slot: int, anchor_ids: Array, passes: Passes, drawn: Drawn) -> bool:
    """The forward of the anchors, or of the tokens that were drawn last; False if it broke off."""
    embedding, num_entering = passes.embedding, len(passes.entering_ids)
    if slot == 0:
        for place in range(num_entering):
            passes.first_x[place] = embedding[passes.entering_ids[place]]
        for chain in range(len(anchor_ids)):
            passes.first_x[num_entering + chain] = embedding[anchor_ids[chain]]
    else:
        for chain in range(len(anchor_ids)):
            passes.x[chain] = embedding[drawn.token_ids[slot - 1, chain]]
    passes.status[0] = PENDING
    call(passes.words[0], (passes.words[min(slot, 1) + 1], 0, 1))
    if slot:
        passes.rows[:, _END] += 1
    return passes.status[0] == DONE


@part
def _now_s(clock_gettime: int) -> float:
    """As `time.perf_counter`."""
    time = np.empty(2, np.int64)
    call(clock_gettime, (_MONOTONIC, time.ctypes.data))
    return time[0] + 1e-9 * time[1]


@part
def _goes_on(slot: int, sure: Confidence, drawn: Drawn, ending: Ending, now_s: float) -> bool:
    """Whether another pass is in time and pays; knows confidences and clocks, never tokens."""
    if not look(ending.clock, now_s):
        return False
    if not len(sure.biases):
        return True
    known, pass_s = drawn.confidences[slot], ending.clock[FURTHER]
    return is_worth_it(ending.worth, ending.survivals, ending.chances, known, pass_s)


def _entry(sources: int) -> Callable[..., tuple[int, int, bool]]:
    """numba keeps it for what it encloses, too: these sources and no others."""

    def draft_chains(
        first_slot: int, job: ChainJob, sizes: tuple[int, int], clock_gettime: int
    ) -> tuple[int, int, bool]:
        """Steps from `first_slot` on.

        sizes: tokens of the vocabulary, steps at most. Returns what became of the last step, how
        many there are, it included, and whether more would follow.
        """
        num_tokens, most = sizes
        passes, sure, drawn = job.passes, job.sure, job.drawn
        room = room_of(num_tokens, job.draws)
        if not sources:
            return BROKE_OFF, first_slot, False
        for token_ids in (job.anchor_ids, passes.entering_ids):
            if not _are_there(token_ids, len(passes.embedding)):
                return NO_TOKEN, first_slot, False
        for slot in range(first_slot, most):
            if not _pass(slot, job.anchor_ids, passes, drawn):
                return BROKE_OFF, slot + 1, False
            hidden = passes.hidden
            if slot == 0:
                hidden = passes.first_hidden[len(passes.entering_ids) :]
            _look(slot, hidden, job.head, sure, drawn, num_tokens)
            # Before the draw, so that what is drawn cannot decide whether it will be verified.
            goes_on = _goes_on(slot, sure, drawn, job.ending, _now_s(clock_gettime))
            made = _draw(slot, job.draws, drawn, num_tokens, room)
            if made != MADE or not goes_on:
                return made, slot + 1, goes_on
        return MADE, most, False

    return compiled.compiled(draft_chains)


draft_chains = _entry(key_of(__file__))
