"""The training objective of drafters, as pure functions (DSpark, section 3.3, eq. 8-12; EAGLE-3).

Every term is a mean over the slots of all blocks, weighted by exp(-k / 4) for slot k = 0, 1, ...:
the 4 is the published recipe's, where the paper's formula has gamma. EAGLE-3's steps weigh 0.8^k.
Numerators and denominators are kept apart, so that parts of a batch can be added up.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

DECAY = 4.0  # slots
EAGLE3_STEP_DECAY = 0.8  # from one step to the next
_EPSILON = 1e-6  # of the denominators


@dataclass(frozen=True)
class LossWeights:
    """How much each term counts; a term of weight 0 is not computed."""

    cross_entropy: float
    l1: float
    confidence: float
    soft: float = 0.0  # cross-entropy with the target's whole distribution instead of the text
    decay: float = DECAY


DSPARK = LossWeights(0.1, 0.9, 1.0)
DFLASH = LossWeights(1.0, 0.0, 0.0)
EAGLE3 = LossWeights(0.0, 0.0, 0.0, soft=1.0, decay=-1 / math.log(EAGLE3_STEP_DECAY))


@dataclass(frozen=True)
class SlotLosses:
    """Unweighted figures of single slots, each [...]."""

    cross_entropy: Tensor
    l1: Tensor | None  # |draft_probs - target_probs| summed over the vocabulary, 0..2
    confidence: Tensor | None


def slot_weights(valid: Tensor, decay: float = DECAY) -> Tensor:
    """exp(-k / decay) where a slot k has a label and 0 elsewhere: [..., G] bool -> float32."""
    return valid * torch.exp(-torch.arange(valid.shape[-1], device=valid.device) / decay)


def l1_distance(
    log_draft_probs: Tensor, target_probs: Tensor, undrafted: Tensor | None = None
) -> Tensor:
    """Twice the total variation between both distributions, [..., DV] each -> [...] (eq. 10).

    `undrafted` [...]: what the target gives to tokens that the draft does not know.
    """
    known = (log_draft_probs.exp() - target_probs).abs().sum(-1)
    return known if undrafted is None else known + undrafted


def acceptance(l1: Tensor) -> Tensor:
    """P(a draft token is accepted) under rejection sampling, from the l1 distance (eq. 8)."""
    return 1 - 0.5 * l1


def slot_losses(
    logits: Tensor,
    labels: Tensor,
    target_probs: Tensor | None,
    confidence_logits: Tensor | None,
    undrafted: Tensor | None = None,
) -> SlotLosses:
    """All terms of every slot.

    logits [..., DV] of the draft, labels [...] int64 (negative: a token that is not drafted, and
    has no cross-entropy), target_probs [..., DV] (None: only the cross-entropy), confidence_logits
    [...] (None: no confidence head), undrafted as `l1_distance` has it. The confidence is trained
    towards the acceptance, through which no gradient flows (eq. 11).
    """
    log_draft_probs = logits.float().log_softmax(-1)
    told = log_draft_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    cross_entropy = -told.masked_fill(labels < 0, 0)
    if target_probs is None:
        return SlotLosses(cross_entropy, None, None)
    l1 = l1_distance(log_draft_probs, target_probs, undrafted)
    if confidence_logits is None:
        return SlotLosses(cross_entropy, l1, None)
    confidence = F.binary_cross_entropy_with_logits(
        confidence_logits.float(), acceptance(l1).detach().clamp(0, 1), reduction="none"
    )
    return SlotLosses(cross_entropy, l1, confidence)


def soft_cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """Nats by which the draft describes the target's distribution, [..., DV] each -> [...].

    Its gradient is that of KL(target || draft).
    """
    return -(target_probs * logits.float().log_softmax(-1)).sum(-1)


def weighted_sum(losses: SlotLosses, weights: Tensor, terms: LossWeights) -> Tensor:
    """The numerator of the objective: all terms of all slots, times `weights` [...]; a scalar."""
    total = terms.cross_entropy * losses.cross_entropy
    if losses.l1 is not None and terms.l1:
        total = total + terms.l1 * losses.l1
    if losses.confidence is not None and terms.confidence:
        total = total + terms.confidence * losses.confidence
    return (total * weights).sum()


def normaliser(weights: Tensor) -> Tensor:
    """The denominator of every term; a scalar."""
    return weights.sum() + _EPSILON


def expected_tokens(l1: Tensor, valid: Tensor) -> Tensor:
    """Tokens a round of each block, the next token included: l1, valid [..., G] -> [...].

    1 + sum_k prod_{j <= k} (1 - l1_j / 2): what the reference calls tau_probabilistic.
    """
    return 1 + (acceptance(l1) * valid).cumprod(-1).sum(-1)
