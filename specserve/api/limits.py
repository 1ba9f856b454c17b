# pyright: strict
"""Limits of a service: of what requests ask, which depends on the model, and of what is sent."""

from specserve.types import Ready
from specserve.validation import Limits

MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # of the API
STREAM_BUFFER_ROUNDS = 4096  # that a slow reader may lag before it is cut off


def limits_of(ready: Ready) -> Limits:
    """What the requests of a target that has announced itself are held against."""
    return Limits(
        vocab_size=ready.vocab_size,
        max_model_len=ready.max_model_len,
        fills_pool=ready.max_model_len == ready.num_blocks * ready.block_size,
    )
