"""top_k, top_p and min_p: which tokens of a row stay possible.

Few do, as a rule, and all of them are among the likeliest: `kept` looks at those alone, `truncate`
says it of all tokens.

Every rule is a threshold on a token's own value, so tokens that tie at a threshold stay or go
together and no sort order can show. The mass that top_p needs is summed in integers: exact in any
order, hence the same bits on every backend, in every batch, by the short cut and the full sort.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specserve.sampling.batch import Truncation

# Likeliest tokens looked at before a full sort, which costs ten times as much: nearly every nucleus
# of a trained model is smaller.
_NUM_CANDIDATES = (256, 2048)
_TIES = 8  # tokens beyond the k-th that may tie with it before all have to be looked at


def mass_bits(num_tokens: int) -> int:
    """Bits of the fixed-point unit in which weights of one row (each at most 1) are summed."""
    return 62 - num_tokens.bit_length()


def fixed_point_mass(weights: Tensor, num_tokens: int) -> Tensor:
    """Weights in 0..1 as int64 counts of 2**-mass_bits, rounded down; sums cannot overflow."""
    return (weights * 2.0 ** mass_bits(num_tokens)).to(torch.int64)


class Kept(NamedTuple):
    """What stays possible in rows that truncate, and maybe a few tokens that do not."""

    ids: Tensor  # int64 [R, C], ascending
    weights: Tensor  # [R, C], zero where impossible


def kept(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Kept | None:
    """What `truncate` leaves, by looking at the likeliest tokens alone.

    None where some row may have more of them, or a token that ties with its last one.
    """
    num_tokens = scaled.shape[1]
    least = 0 if truncation.all_top_k else _NUM_CANDIDATES[0]
    size = min(max(truncation.max_top_k + _TIES, least), num_tokens)
    ordered, ids = scaled.topk(size, dim=1)
    few, last = weights.gather(1, ids), ordered[:, -1]
    is_all = torch.full_like(last, size == num_tokens, dtype=torch.bool)
    is_torn = torch.zeros_like(is_all)  # by top_k: how much mass top_p is of is not known here
    if truncation.max_top_k > 0:
        place = (truncation.top_k - 1).clamp(0, size - 1).unsqueeze(1)
        threshold = ordered.gather(1, place).squeeze(1)
        cuts = (truncation.top_k > 0) & (truncation.top_k <= size)
        threshold = torch.where(cuts, threshold, float("-inf"))
        few = few.masked_fill(ordered < threshold.unsqueeze(1), 0.0)
        is_all |= last < threshold
        is_torn = (truncation.top_k > 0) & ~is_all
    if truncation.any_top_p:
        held = fixed_point_mass(few, num_tokens).cumsum(dim=1)
        mass = held[:, -1]
        if not truncation.all_top_k:
            mass = torch.where(is_all, mass, fixed_point_mass(weights, num_tokens).sum(dim=1))
        enough = held.double() >= (mass.double() * truncation.top_p).unsqueeze(1)
        place = (~enough).sum(dim=1, keepdim=True).clamp_(max=size - 1)
        cuts = (truncation.top_p < 1) & enough[:, -1]
        threshold = torch.where(cuts, ordered.gather(1, place).squeeze(1), float("-inf"))
        few = few.masked_fill(ordered < threshold.unsqueeze(1), 0.0)
        is_all |= last < threshold
    if truncation.any_min_p:
        floor = truncation.min_p.to(weights.dtype)
        is_all |= weights.gather(1, ids[:, -1:]).squeeze(1) < floor
        few = few.masked_fill(few < floor.unsqueeze(1), 0.0)
    if not bool((is_all & ~is_torn).all()):
        return None
    ids, order = ids.sort(dim=1)
    return Kept(ids, few.gather(1, order))


def truncate(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
    """The weights with those of impossible tokens set to zero; [R, V], the truncating rows only.

    `scaled` are (logit - row maximum) / temperature, `weights` their exponentials.

    top_k keeps the k largest and what ties with the k-th. top_p keeps the likeliest of those until
    they hold `top_p` of their mass, and what ties with the last. min_p keeps what is at least
    `min_p` times as likely as the likeliest. The likeliest token always stays.
    """
    waits = truncation.may_wait and truncation.any_top_p
    few = kept(scaled, weights, truncation) if waits else None
    if few is not None:
        return torch.zeros_like(weights).scatter_(1, few.ids, few.weights)
    return _truncated(scaled, weights, truncation)


def _truncated(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
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
