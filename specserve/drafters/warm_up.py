"""First calls of a drafter, made while nobody waits, and how long later ones take.

What is allocated, loaded or chosen at first calls took a sixth of a second of somebody's round, and
a dozen where nothing was compiled yet.
"""

from collections.abc import Sequence

import torch

from specserve.drafters import draft_times
from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.load import DrafterOptions
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, DraftSampler, Greedy, Sampled

_ROW = -1  # nobody's
_NUM_TOKENS, _NUM_PENDING = 16, 4


def warm_up(drafter: Drafter, options: DrafterOptions, *, size: int, num_kept: int) -> None:
    """One draft of `size` blocks by every sampler."""
    num_tokens = _begin(drafter, options)
    for sampler in _samplers(size, num_kept, options.device):
        drafter.draft(_batch(drafter, size, options.device), sampler)
    if drafter.holds_pending_tokens:
        more = torch.zeros(_NUM_PENDING, dtype=torch.int64, device=options.device)
        drafter.extend(ContextUpdate([_ROW], [num_tokens], [_NUM_PENDING], more, None))
    drafter.free(_ROW)


def time_drafts(
    drafter: Drafter,
    options: DrafterOptions,
    *,
    sizes: Sequence[int],
    num_kept: int,
    known: DraftTimes | None = None,
) -> DraftTimes:
    """Of so many blocks each, `sizes` ascending, drawn as drafts mostly are.

    `known`: by an earlier process, which are brought to the pace of this one.
    """
    device = options.device
    features = None
    if drafter.feature_size:
        shape = _NUM_PENDING, drafter.feature_size
        features = torch.zeros(shape, dtype=options.dtype, device=device)
    verified = torch.zeros(_NUM_PENDING, dtype=torch.int64, device=device)

    def draft(num_blocks: int, num_tokens: int | None) -> None:
        _, sampler, _ = _samplers(num_blocks, num_kept, device)
        drawn = drafter.draft(_batch(drafter, num_blocks, device, num_tokens), sampler)
        drawn.token_ids[0, 0].item()  # which a device has to compute first

    num_tokens = _begin(drafter, options)

    def enter() -> None:
        drafter.extend(ContextUpdate([_ROW], [num_tokens], [_NUM_PENDING], verified, features))
        drafter.truncate(_ROW, num_tokens)

    try:
        if known is not None:
            now = draft_times.at_pace(known, draft, sizes, gamma=drafter.gamma)
            if now is not None:
                return now
        is_chain = drafter.stops_in_time
        times = draft_times.measure(draft, sizes, is_chain=is_chain, gamma=drafter.gamma)
        return DraftTimes(times, draft_times.shortest(enter))
    finally:
        drafter.free(_ROW)


def _begin(drafter: Drafter, options: DrafterOptions) -> int:
    """A row of nobody's, of so many tokens."""
    num_tokens = max(1, min(_NUM_TOKENS, options.max_positions - _NUM_PENDING))
    features = None
    if drafter.feature_size:
        shape = num_tokens, drafter.feature_size
        features = torch.zeros(shape, dtype=options.dtype, device=options.device)
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=options.device)
    drafter.extend(ContextUpdate([_ROW], [0], [num_tokens], token_ids, features))
    return num_tokens


def _batch(
    drafter: Drafter, size: int, device: torch.device, most: int | None = None
) -> DraftBatch:
    return DraftBatch(
        rows=[_ROW] * size,
        anchor_ids=torch.zeros(size, dtype=torch.int64, device=device),
        gap_ids=None if drafter.holds_pending_tokens else [[1]] * size,
        keep_logits=True,
        most=most,
    )


def _samplers(
    size: int, num_kept: int, device: torch.device
) -> tuple[DraftSampler, DraftSampler, DraftSampler]:
    zeros, temperatures = [0] * size, torch.ones(size, device=device)
    seeds = torch.zeros(2, size, dtype=torch.int64, device=device)
    keys = OnceKeys.build(zeros, zeros, zeros, zeros, zeros, device)
    return (
        Greedy(),
        Coupled(temperatures, seeds[0], seeds[1]),
        Sampled(temperatures, keys, num_kept),
    )
