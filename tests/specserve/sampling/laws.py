"""Draft laws for tests, from probabilities over the whole vocabulary."""

from torch import Tensor

from specserve.sampling.draft_law import DraftLaw


def law_of_likeliest(weights: Tensor, num_kept: int) -> DraftLaw:
    """Of the `num_kept` largest of each row of `weights` [N, V], at or above zero."""
    kept, ids = weights.topk(min(num_kept, weights.shape[1]), dim=1)
    return DraftLaw.of_entries(ids, kept)
