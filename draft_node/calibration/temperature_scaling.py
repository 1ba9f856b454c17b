"""Sequential temperature scaling (DSpark, section 3.2.1).

A survival is a product of confidences, so a position is calibrated with the positions before it
already settled: from left to right, each takes the temperature that brings the survivals up to it
closest to what was observed. Temperatures keep the order of any two confidences of a position.
"""

import numpy as np
from numpy.typing import NDArray

from draft_node.calibration.metrics import expected_calibration_error
from specserve.drafters.law_confidence import Floats, sigmoid

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
