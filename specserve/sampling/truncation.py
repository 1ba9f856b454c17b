"""top_k, top_p and min_p: which tokens of a row stay possible.

Few do, as a rule, and all of them are among the likeliest: `likeliest` looks at those alone,
`truncate` at all tokens.

Every rule is a threshold on a token's own value, so tokens that tie at a threshold stay or go
together and no sort order can show. The mass that top_p needs is summed in integers: exact in any
order, hence the same bits on every backend, in every batch, and however the threshold is found.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from specserve.sampling.batch import Truncation

_NUM_LIKELIEST = 256  # nearly every nucleus of a trained model is smaller
_TIES = 8  # tokens beyond the k-th that may tie with it before all have to be looked at
# Bins that scaled logits are counted in to find the one with the threshold. The last has all that
# is less than exp(-32) times as likely as the likeliest token.
_NUM_BINS = 2048
_BINS_PER_UNIT = 64


def mass_bits(num_tokens: int) -> int:
    """Bits of the fixed-point unit in which weights of one row (each at most 1) are summed."""
    return 62 - num_tokens.bit_length()


def fixed_point_mass(weights: Tensor, num_tokens: int) -> Tensor:
    """Weights in 0..1 as int64 counts of 2**-mass_bits, rounded down; sums cannot overflow."""
    return (weights * 2.0 ** mass_bits(num_tokens)).to(torch.int64)


class Likeliest(NamedTuple):
    """The likeliest tokens of rows that truncate."""

    ids: Tensor  # int64 [R, C], ascending
    weights: Tensor  # [R, C], zero where impossible
    are_all: bool  # whether no other token is possible in any row


def can_be_few(truncation: Truncation) -> bool:
    """Whether `likeliest` may find all that is possible; captured work cannot read its answer."""
    is_small = truncation.max_top_k <= _NUM_LIKELIEST
    return truncation.may_wait and truncation.any_top_p and is_small


def likeliest(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Likeliest:
    """What `truncate` leaves, by looking at the likeliest tokens alone.

    They are not all where some row may have more, or more that tie with its last one.
    """
    num_tokens = scaled.shape[1]
    least = 0 if truncation.all_top_k else _NUM_LIKELIEST
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
    ids, order = ids.sort(dim=1)
    return Likeliest(ids, few.gather(1, order), are_all=bool((is_all & ~is_torn).all()))


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
    if truncation.may_wait and truncation.max_top_k > _NUM_LIKELIEST:
        counts = torch.ones_like(scaled, dtype=torch.int64)
        needed = truncation.top_k.clamp(max=num_tokens).double()
        threshold = _threshold_by_bins(scaled, counts, needed)
    else:
        largest = scaled.topk(min(truncation.max_top_k, num_tokens), dim=1).values
        place = (truncation.top_k - 1).clamp(0, largest.shape[1] - 1).unsqueeze(1)
        threshold = largest.gather(1, place)
    threshold = threshold.masked_fill((truncation.top_k == 0).unsqueeze(1), float("-inf"))
    return weights.masked_fill(scaled < threshold, 0.0)


def _apply_top_p(scaled: Tensor, weights: Tensor, truncation: Truncation) -> Tensor:
    mass = fixed_point_mass(weights, scaled.shape[1])  # none of it where top_k has cut
    needed = mass.sum(dim=1).double() * truncation.top_p
    threshold_of = _threshold_by_bins if truncation.may_wait else _threshold_by_sort
    threshold = threshold_of(scaled, mass, needed)
    threshold = threshold.masked_fill((truncation.top_p >= 1).unsqueeze(1), float("-inf"))
    return weights.masked_fill(scaled < threshold, 0.0)


def _threshold_by_sort(scaled: Tensor, mass: Tensor, needed: Tensor) -> Tensor:
    """The largest scaled logit [R, 1] at and above which a row holds `needed` of its mass, [R].

    `mass` is int64 [R, V], at least `needed` in all.
    """
    ordered, ids = scaled.sort(dim=1, descending=True)
    return ordered.gather(1, _place_of(mass.gather(1, ids).cumsum(dim=1), needed))


def _threshold_by_bins(scaled: Tensor, mass: Tensor, needed: Tensor) -> Tensor:
    """`_threshold_by_sort` by a sort of one narrow bin, a hundredth of the work of sorting all.

    How many tokens are in the bin is asked of the device, so this waits for it.
    """
    num_rows = len(scaled)
    bins = (scaled * -_BINS_PER_UNIT).clamp_(max=_NUM_BINS - 1).to(torch.int64).clamp_(min=0)
    in_bins = mass.new_zeros(num_rows, _NUM_BINS).scatter_add_(1, bins, mass)
    held = in_bins.cumsum(dim=1)
    chosen = _place_of(held, needed)
    rows, ids = (bins == chosen).nonzero().T
    num_members = rows.bincount(minlength=num_rows)
    place = torch.arange(len(rows), device=rows.device)
    place -= (num_members.cumsum(dim=0) - num_members)[rows]
    shape = num_rows, max(1, int(num_members.max()))  # none where all rows are bad
    members = scaled.new_full(shape, float("-inf")).index_put_((rows, place), scaled[rows, ids])
    member_mass = mass.new_zeros(shape).index_put_((rows, place), mass[rows, ids])
    above = (held - in_bins).gather(1, chosen)
    ordered, order = members.sort(dim=1, descending=True)
    held = member_mass.gather(1, order).cumsum(dim=1).add_(above)
    return ordered.gather(1, _place_of(held, needed))


def _place_of(held: Tensor, needed: Tensor) -> Tensor:
    """Where ascending sums [R, C] first reach what a row needs; int64 [R, 1]."""
    is_short = held.double() < needed.unsqueeze(1)
    return is_short.sum(dim=1, keepdim=True).clamp_(max=held.shape[1] - 1)
