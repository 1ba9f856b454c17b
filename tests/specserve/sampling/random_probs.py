"""draft probabilities for tests, from probabilities over the whole vocabulary."""

from torch import Tensor

from specserve.sampling.draft_probs import DraftProbs


def likeliest_probs(weights: Tensor, num_kept: int) -> DraftProbs:
    """Of the `num_kept` largest of each row of `weights` [N, V], at or above zero."""
    kept, ids = weights.topk(min(num_kept, weights.shape[1]), dim=1)
    return DraftProbs.of_entries(ids, kept)
