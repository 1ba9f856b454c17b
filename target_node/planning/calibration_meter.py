# pyright: strict
"""How far confidences are from what became of the tokens, position by position, since the start.

A confidence is P(this token stands, given that those before it do), so it is held against the
tokens that were reached. The error is the usual expected calibration error: tokens are binned by
their confidence, and the bins' |mean confidence - share accepted| are averaged by their tokens.

Rounds only hand their rows in; they are counted, together, when somebody is told. Nothing reads
this but reports: no plan depends on it.
"""

from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from specserve.telemetry import VerifiedRow
from specserve.types import PositionCalibration

Floats = npt.NDArray[np.float64]

NUM_BINS = 10  # of equal width


class CalibrationMeter:
    """Of one target, whoever drafted."""

    def __init__(self) -> None:
        self._pending: list[tuple[tuple[float, ...], int]] = []  # of judged tokens; how many stood
        # Tokens, those that stood, confidences: sums by position and bin, [3, positions, bins].
        self._sums: Floats = np.zeros((3, 0, NUM_BINS))

    def observe(self, rows: Iterable[VerifiedRow]) -> None:
        """A round's rows; those without confidences tell nothing."""
        for row in rows:
            if row.confidences and row.num_judged:
                self._pending.append((row.confidences[: row.num_judged], row.num_accepted))

    def report(self) -> list[PositionCalibration]:
        """Everything so far, by position."""
        if self._pending:
            self._count()
        totals: list[list[float]] = self._sums.sum(2).T.tolist()
        off: list[float] = np.abs(self._sums[2] - self._sums[1]).sum(1).tolist()
        return [
            PositionCalibration(int(judged), int(stood), confidence, error / max(1.0, judged))
            for (judged, stood, confidence), error in zip(totals, off, strict=True)
        ]

    def _count(self) -> None:
        pending, self._pending = self._pending, []
        positions = [place for confidences, _ in pending for place in range(len(confidences))]
        stood = [
            float(place < num_accepted)
            for confidences, num_accepted in pending
            for place in range(len(confidences))
        ]
        flat = chain.from_iterable(confidences for confidences, _ in pending)
        # A drafter may say what is no probability; so is it taken where plans are made.
        told: Floats = np.nan_to_num(np.fromiter(flat, np.float64, len(positions))).clip(0, 1)
        bins = np.minimum(told * NUM_BINS, NUM_BINS - 1).astype(np.int64)
        places = np.array(positions) * NUM_BINS + bins
        missing = max(0, max(positions) + 1 - self._sums.shape[1])
        self._sums = np.pad(self._sums, ((0, 0), (0, missing), (0, 0)))
        for sums, weights in zip(
            self._sums, (np.ones(len(told)), np.array(stood), told), strict=True
        ):
            sums += np.bincount(places, weights, sums.size).reshape(sums.shape)
