# pyright: strict
"""What requests are held against: limits of the model that is served and of the configuration."""

from specserve.settings.config import ServerConfig
from specserve.types import Ready
from specserve.validation import Limits


def limits_of(ready: Ready, server: ServerConfig) -> Limits:
    """Of a target that has announced itself."""
    return Limits(
        vocab_size=ready.vocab_size,
        max_model_len=ready.max_model_len,
        max_samples=server.max_samples,
        max_logprobs=server.max_logprobs,
        fills_pool=ready.max_model_len == ready.num_blocks * ready.block_size,
    )
