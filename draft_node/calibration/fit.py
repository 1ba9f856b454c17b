"""From samples to a calibration, and what it is worth on texts that were not fitted.

Sequential temperature scaling (DSpark, section 3.2.1): a survival is a product of confidences, so a
position is calibrated with the positions before it already settled: from left to right, each takes
the temperature that brings the survivals up to it closest to what was observed. Temperatures keep
the order of any two confidences of a position.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from draft_node.calibration.collect import Samples
from draft_node.calibration.metrics import expected_calibration_error, measure, survivals
from draft_node.calibration.texts import Text
from specserve.drafters.probs_confidence import (
    ConfidenceModel,
    Floats,
    fit_confidence_model,
    sigmoid,
)
from specserve.drafters.stored_calibration import PositionFigures


@dataclass(frozen=True)
class Fitted:
    """Temperatures [G] and, without a confidence head, the model of confidences."""

    temperatures: Floats
    confidence_model: ConfidenceModel | None

    def survivals(self, samples: Samples) -> Floats:
        """Calibrated survival of every block and position, [N, G]."""
        return survivals(_logits(samples, self.confidence_model), self.temperatures)


def fit(samples: Samples) -> Fitted:
    """Calibrate on all of `samples`."""
    confidence_model = None
    if samples.features is not None:
        confidence_model = fit_confidence_model(samples.features, samples.expected, samples.reached)
    logits = _logits(samples, confidence_model)
    return Fitted(fit_temperatures(logits, samples.survived, samples.counted), confidence_model)


def _logits(samples: Samples, confidence_model: ConfidenceModel | None) -> Floats:
    if confidence_model is None or samples.features is None:
        return samples.logits
    return confidence_model.logits(samples.features)


def figures(predicted: Floats, samples: Samples) -> list[PositionFigures]:
    """Of predicted survivals [N, G], position by position, up to the first that none counts at."""
    found: list[PositionFigures] = []
    for k in range(predicted.shape[1]):
        rows = samples.counted[:, k]
        if not rows.any():
            break
        metrics = measure(predicted[rows, k], samples.survived[rows, k])
        found.append(PositionFigures(**asdict(metrics)))
    return found


def mean_ece(positions: Sequence[PositionFigures]) -> float:
    return float(np.mean([position.ece for position in positions]))


def fitted_half(texts: Sequence[Text]) -> NDArray[np.bool_]:
    """Which texts are fitted: every other one of each domain. The others evaluate."""
    seen: dict[str, int] = {}
    chosen: list[bool] = []
    for text in texts:
        number = seen.get(text.prompt.domain, 0)
        chosen.append(number % 2 == 0)
        seen[text.prompt.domain] = number + 1
    return np.array(chosen)


GRID: Floats = np.arange(1, 101, dtype=np.float64) * 0.05  # 0.05, 0.10 .. 5.00


def fit_temperatures(
    logits: Floats, targets: Floats, counted: NDArray[np.bool_], grid: Floats = GRID
) -> Floats:
    """Temperatures [G] of confidence logits [N, G].

    `targets` [N, G] say whether (or how likely) positions 0..k all stood; rows outside `counted`
    [N, G] are left out of a position's fit. The first of equally good temperatures wins, and a
    position without samples keeps 1.
    """
    temperatures = np.ones(logits.shape[1])
    before = np.ones(len(logits))
    for k in range(logits.shape[1]):
        rows = counted[:, k]
        if rows.any():
            errors = [
                expected_calibration_error(
                    before[rows] * sigmoid(logits[rows, k] / temperature), targets[rows, k]
                )
                for temperature in grid
            ]
            temperatures[k] = grid[int(np.argmin(errors))]
        before = before * sigmoid(logits[:, k] / temperatures[k])
    return temperatures
