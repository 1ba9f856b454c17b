"""From samples to a calibration, and what it is worth on texts that were not fitted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from draft_node.calibration.collect import Samples
from draft_node.calibration.metrics import measure, survivals
from draft_node.calibration.temperature_scaling import fit_temperatures
from draft_node.calibration.texts import Text
from specserve.drafters.law_confidence import Floats, LawModel, fit_law_model
from specserve.drafters.stored_calibration import PositionFigures


@dataclass(frozen=True)
class Fitted:
    """Temperatures [G] and, where the drafter has no confidence head, the model of its laws."""

    temperatures: Floats
    law: LawModel | None

    def survivals(self, samples: Samples) -> Floats:
        """Calibrated survival of every block and position, [N, G]."""
        return survivals(_logits(samples, self.law), self.temperatures)


def fit(samples: Samples) -> Fitted:
    """Calibrate on all of `samples`."""
    law = None
    if samples.features is not None:
        law = fit_law_model(samples.features, samples.expected, samples.reached)
    logits = _logits(samples, law)
    return Fitted(fit_temperatures(logits, samples.survived, samples.counted), law)


def _logits(samples: Samples, law: LawModel | None) -> Floats:
    if law is None or samples.features is None:
        return samples.logits
    return law.logits(samples.features)


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
