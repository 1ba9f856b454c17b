"""How well survival probabilities are calibrated: expected calibration error, AUROC, Brier score.

Predictions and targets are float64 [N]. A target is 0 or 1 (a drafted token stood, and so did all
before it), or the probability of that: every figure is linear in the targets, so a probability
gives the mean over the outcomes it stands for, without the noise of drawing them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specserve.drafters.probs_confidence import Floats, by_position, sigmoid

NUM_BINS = 20
_NUM_FINE_BINS = 1000  # of the AUROC's histogram; within a bin, pairs count half
_LEAST = 1e-8  # predictions are kept this far from 0 and 1


@dataclass(frozen=True)
class Metrics:
    """Figures of one position; `auroc` is None where all outcomes are alike."""

    num_samples: int
    ece: float
    auroc: float | None
    brier: float
    mean_prediction: float
    mean_target: float


@dataclass(frozen=True)
class Bins:
    """The bins that hold predictions, from low to high; all [B]."""

    predictions: Floats  # means
    targets: Floats
    counts: Floats


def survivals(logits: Floats, temperatures: Floats | None = None) -> Floats:
    """P(positions 0..k stand) for confidence logits [N, G]: products along each row.

    Temperatures are by position, as many as were fitted.
    """
    scaled = logits
    if temperatures is not None:
        scaled = logits / by_position(temperatures, logits.shape[1])
    return sigmoid(scaled).cumprod(axis=1)


def measure(predictions: Floats, targets: Floats) -> Metrics:
    """All figures of one position. ValueError without samples."""
    if not len(predictions):
        raise ValueError("nothing to measure")
    p = np.clip(predictions, _LEAST, 1 - _LEAST)
    return Metrics(
        num_samples=len(p),
        ece=expected_calibration_error(p, targets),
        auroc=auroc(p, targets),
        # The mean of (p - m)^2 over outcomes m that are 1 with probability t.
        brier=float(np.mean(p * p + targets * (1 - 2 * p))),
        mean_prediction=float(p.mean()),
        mean_target=float(targets.mean()),
    )


def expected_calibration_error(predictions: Floats, targets: Floats) -> float:
    """Mean distance of prediction and target over bins of equal width, weighted by their counts."""
    places = _places(predictions, NUM_BINS)
    gaps = np.bincount(places, weights=predictions - targets, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(predictions))


def bins(predictions: Floats, targets: Floats) -> Bins:
    """What a reliability diagram shows."""
    places = _places(predictions, NUM_BINS)
    counts = np.bincount(places, minlength=NUM_BINS).astype(np.float64)
    used = counts > 0
    sums = (np.bincount(places, weights=w, minlength=NUM_BINS) for w in (predictions, targets))
    means = [total[used] / counts[used] for total in sums]
    return Bins(means[0], means[1], counts[used])


def auroc(predictions: Floats, targets: Floats) -> float | None:
    """P(what stood was predicted higher than what did not); None where there is no such pair."""
    places = _places(predictions, _NUM_FINE_BINS)
    stood = np.bincount(places, weights=targets, minlength=_NUM_FINE_BINS)
    fell = np.bincount(places, weights=1 - targets, minlength=_NUM_FINE_BINS)
    num_pairs = stood.sum() * fell.sum()
    if num_pairs <= 0:
        return None
    lower = fell.cumsum() - fell
    return float((stood * (lower + fell / 2)).sum() / num_pairs)


def _places(predictions: Floats, num_bins: int) -> NDArray[np.int64]:
    return np.minimum((predictions * num_bins).astype(np.int64), num_bins - 1)
