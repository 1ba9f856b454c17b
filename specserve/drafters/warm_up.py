"""First calls of a drafter, made while nobody waits.

What is allocated, loaded or chosen at first calls took a sixth of a second of somebody's round, and
a dozen where nothing was compiled yet.
"""

import torch

from specserve.drafters.load import DrafterOptions
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, DraftSampler, Greedy, Sampled

_ROW = -1  # nobody's
_NUM_TOKENS, _NUM_PENDING = 16, 4


def warm_up(drafter: Drafter, options: DrafterOptions, *, size: int, num_kept: int) -> None:
    """One draft of `size` blocks by every sampler, on a row of its own."""
    dtype, device = options.dtype, options.device
    num_tokens = max(1, min(_NUM_TOKENS, options.max_positions - _NUM_PENDING))
    features = None
    if drafter.feature_size:
        features = torch.zeros(num_tokens, drafter.feature_size, dtype=dtype, device=device)
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    drafter.extend(ContextUpdate([_ROW], [0], [num_tokens], token_ids, features))
    batch = DraftBatch(
        rows=[_ROW] * size,
        anchor_ids=torch.zeros(size, dtype=torch.int64, device=device),
        gap_ids=None if drafter.holds_pending_tokens else [[1]] * size,
        keep_logits=True,
    )
    for sampler in _samplers(size, num_kept, device):
        drafter.draft(batch, sampler)
    if drafter.holds_pending_tokens:
        more = torch.zeros(_NUM_PENDING, dtype=torch.int64, device=device)
        drafter.extend(ContextUpdate([_ROW], [num_tokens], [_NUM_PENDING], more, None))
    drafter.free(_ROW)


def _samplers(size: int, num_kept: int, device: torch.device) -> list[DraftSampler]:
    zeros, temperatures = [0] * size, torch.ones(size, device=device)
    seeds = torch.zeros(2, size, dtype=torch.int64, device=device)
    keys = OnceKeys.build(zeros, zeros, zeros, zeros, zeros, device)
    return [
        Greedy(),
        Coupled(temperatures, seeds[0], seeds[1]),
        Sampled(temperatures, keys, num_kept),
    ]
