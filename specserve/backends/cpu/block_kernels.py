"""The serial part of blocks, compiled: a Markov head's bias and a draw, slot by slot, in one call.

By torch it is ten small operations a slot around a product of rank size, which is less than those.
Arrays are contiguous; no index is checked here, who calls knows what there is. numba keeps the
result for the sources of all that it is made of.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specserve.backends.cpu import compiled, step_kernels
from specserve.backends.cpu.compiled_sources import key_of
from specserve.backends.cpu.step_kernels import Drawn, Head, draw, room_of
from specserve.models.forward_job import Thread
from specserve.models.layer_kernels import multiply
from specserve.sampling.race import Race

Array = np.ndarray


class Markov(NamedTuple):
    """A vanilla head: the bias of a slot's logits by the token before it."""

    embedding: Array  # [V, r]
    head: Head  # [B, r] -> [B, width]
    width: int  # V or more


@step_kernels.part
def _draw_slots(logits: Array, anchor_ids: Array, markov: Markov, draws: Race, drawn: Drawn) -> int:
    """How many slots of logits [B, G, V] were drawn; the one after them has its bias already.

    anchor_ids int64 [B]. Of `drawn` the token ids and laws are written.
    """
    num_blocks, num_slots, num_tokens = logits.shape
    embedding, head = markov.embedding, markov.head
    before = np.empty((num_blocks, embedding.shape[1]), np.float32)
    biases = np.empty((num_blocks, markov.width), np.float32)
    room, previous = room_of(num_tokens, draws), anchor_ids.copy()
    for slot in range(num_slots):
        for block in range(num_blocks):
            before[block] = embedding[previous[block]]
        multiply(before, head.product, head.functions, biases, Thread(0, 1))
        for block in range(num_blocks):
            row, bias = logits[block, slot], biases[block]
            for token in range(num_tokens):
                row[token] += bias[token]
        for block in range(num_blocks):
            token = draw(logits[block, slot], slot, block, draws, drawn, room)
            if token < 0:
                return slot
            drawn.token_ids[slot, block] = token
        for block in range(len(room.shaping.rows)):  # not before all of them are drawn
            logits[block, slot] = room.shaping.rows[block]
        previous[:] = drawn.token_ids[slot]
    return num_slots


def _entry(sources: int) -> Callable[..., int]:
    """numba keeps it for what it encloses, too: these sources and no others."""

    def draw_slots(
        logits: Array, anchor_ids: Array, markov: Markov, draws: Race, drawn: Drawn
    ) -> int:
        return _draw_slots(logits, anchor_ids, markov, draws, drawn) if sources else 0

    return compiled.compiled(draw_slots)


draw_slots = _entry(key_of(__file__))
