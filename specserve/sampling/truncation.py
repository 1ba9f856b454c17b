"""top_k, top_p and min_p: which tokens of a row stay possible.

Every rule is a threshold on a token's own value, so tokens that tie at a threshold stay or go
together and no sort order can show. The mass that top_p needs is summed in integers: exact in any
order, hence the same bits on every backend, in every batch, by the short cut and the full sort.
"""

import torch
from torch import Tensor

from specserve.sampling.batch import Truncation

# Likeliest tokens looked at before a full sort, which costs ten times as much: nearly every nucleus
# of a trained model is smaller.
_NUM_CANDIDATES = (256, 2048)


def mass_bits(num_tokens: int) -> int:
    """Bits of the fixed-point unit in which weights of one row (each at most 1) are summed."""
    return 62 - num_tokens.bit_length()


def fixed_point_mass(weights: Tensor, num_tokens: int) -> Tensor:
    """Weights in 0..1 as int64 counts of 2**-mass_bits, rounded down; sums cannot overflow."""
    return (weights * 2.0 ** mass_bits(num_tokens)).to(torch.int64)


def truncate(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
    """The weights with those of impossible tokens set to zero; [R, V], the truncating rows only.

    `scaled` are (logit - row maximum) / temperature, `weights` their exponentials.

    top_k keeps the k largest and what ties with the k-th. top_p keeps the likeliest of those until
    they hold `top_p` of their mass, and what ties with the last. min_p keeps what is at least
    `min_p` times as likely as the likeliest. The likeliest token always stays.
    """
    if truncation.max_top_k > 0:
        weights = _apply_top_k(scaled, weights, truncation)
    if truncation.any_top_p:
        weights = _apply_top_p(scaled, weights, truncation)
    if truncation.any_min_p:
        floor = truncation.min_p.to(weights.dtype).unsqueeze(1)
        weights = weights.masked_fill(weights < floor, 0.0)
    return weights


def _apply_top_k(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
    num_tokens = scaled.shape[1]
    largest = scaled.topk(min(truncation.max_top_k, num_tokens), dim=1).values
    place = (truncation.top_k - 1).clamp(0, largest.shape[1] - 1).unsqueeze(1)
    threshold = largest.gather(1, place)
    threshold.masked_fill_((truncation.top_k == 0).unsqueeze(1), float("-inf"))
    return weights.masked_fill(scaled < threshold, 0.0)


def _apply_top_p(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
    num_tokens = scaled.shape[1]
    needed = fixed_point_mass(weights, num_tokens).sum(dim=1).double() * truncation.top_p
    needed.masked_fill_(truncation.top_p >= 1, 0.0)
    alive = scaled
    if truncation.max_top_k > 0:  # what that cut must not pose as a candidate
        alive = scaled.masked_fill(weights == 0, float("-inf"))
    few, *more = (*_NUM_CANDIDATES, num_tokens) if truncation.may_wait else (num_tokens,)
    thresholds, complete = _nucleus(alive, weights, needed, min(few, num_tokens))
    for num_candidates in more:
        if bool(complete.all()):
            break
        rest = (~complete).nonzero().squeeze(1)
        thresholds[rest], complete[rest] = _nucleus(
            alive[rest], weights[rest], needed[rest], min(num_candidates, num_tokens)
        )
    thresholds.masked_fill_(truncation.top_p >= 1, float("-inf"))
    return weights.masked_fill(alive < thresholds.unsqueeze(1), 0.0)


def _nucleus(
    alive: Tensor, weights: Tensor, needed: Tensor, num_candidates: int
) -> tuple[Tensor, Tensor]:
    """The least scaled logit of each nucleus [R], and whether the candidates held it all."""
    if num_candidates < alive.shape[1]:
        ordered, ids = alive.topk(num_candidates, dim=1)
    else:
        ordered, ids = alive.sort(dim=1, descending=True)
    held = fixed_point_mass(weights.gather(1, ids), alive.shape[1]).cumsum(dim=1).double()
    enough = held >= needed.unsqueeze(1)
    place = (~enough).sum(dim=1, keepdim=True).clamp_(max=num_candidates - 1)
    return ordered.gather(1, place).squeeze(1), enough[:, -1]
