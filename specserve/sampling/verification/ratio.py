"""The arithmetic of the ratio test: two functions that code and enumeration share.

For a token drafted from q and verified under p: it stands with probability min(1, p/q), else the
recovery token is drawn from (p - q)+. Summed over the drafted token that is p, whatever q.
"""

import torch
from torch import Tensor

from specserve.sampling.draft_probs import DraftProbs

_LEAST = 2.0**-64  # far below what rounding leaves, far above where noise / weight overflows


def accept_probs(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """min(1, p/q) for the probabilities of drafted tokens [N], in float64.

    Zero where q is zero: nothing was drafted. A NaN stays one, and stands no test.
    """
    ratio = target_probs.double() / draft_probs.double()
    return ratio.clamp(max=1.0).masked_fill(draft_probs <= 0, 0.0)


def accepts(uniforms: Tensor, probs: Tensor) -> Tensor:
    """Which tokens stand, bool [N], by variates in 0..1, 1 excluded.

    Strictly below: a probability of 0 stands not even at a variate of 0, one of 1 always.
    """
    return uniforms.double() < probs


def residual_probs(target_probs: Tensor, draft_probs: DraftProbs) -> Tensor:
    """(p - q)+ of each row, [N, V] and unnormalised; p itself under an empty distribution.

    Its mass is that of (q - p)+, so whenever a token was rejected, which takes q > p somewhere, it
    is above zero. In float32 both distributions sum to 1 only within 1e-7, so with that probability
    a token is rejected and nothing is left, or less than could be divided by: then p.
    """
    residual = draft_probs.subtracted_from(target_probs).clamp_(min=0.0)
    nothing_left = residual.amax(dim=1, keepdim=True) < _LEAST
    return torch.where(nothing_left, target_probs, residual)
