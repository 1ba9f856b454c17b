# pyright: strict
"""How far confidences are from what became of the tokens, position by position, since the start.

A confidence is P(this token stands, given that those before it do), so it is held against the
tokens that were reached. The error is the usual expected calibration error: tokens are binned by
their confidence, and the bins' |mean confidence - share accepted| are averaged by their tokens.

Rounds only hand their rows in; they are counted, together, when somebody is told. Nothing reads
this but reports: no plan depends on it.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from specserve.telemetry import VerifiedRow
from specserve.types import PositionCalibration

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[Any]

NUM_BINS = 10  # of equal width


class CalibrationMeter:
    """Of one target, whoever drafted."""

    def __init__(self) -> None:
        self._pending: list[VerifiedRow] = []  # that nobody has counted yet
        # Tokens, those that stood, confidences: sums by position and bin, [3, positions, bins].
        self._sums: Floats = np.zeros((3, 0, NUM_BINS))

    def observe(self, rows: Iterable[VerifiedRow]) -> None:
        """A round's rows."""
        self._pending += rows

    def report(self) -> list[PositionCalibration]:
        """Everything so far, by position."""
        # Rows without confidences or verdict tell nothing.
        rows = [row for row in self._pending if row.confidences and row.num_judged]
        self._pending.clear()
        if rows:
            self._count(rows)
        totals: list[list[float]] = self._sums.sum(2).T.tolist()
        off: list[float] = np.abs(self._sums[2] - self._sums[1]).sum(1).tolist()
        return [
            PositionCalibration(int(judged), int(stood), confidence, error / max(1.0, judged))
            for (judged, stood, confidence), error in zip(totals, off, strict=True)
        ]

    def _count(self, rows: Sequence[VerifiedRow]) -> None:
        judged = [row.confidences[: row.num_judged] for row in rows]
        lengths: Integers = np.fromiter(map(len, judged), np.int64, len(rows))
        num_stood: Integers = np.fromiter((row.num_accepted for row in rows), np.int64, len(rows))
        ends: Integers = np.cumsum(lengths)
        starts: Integers = np.repeat(ends - lengths, lengths)
        positions: Integers = np.arange(int(ends[-1])) - starts
        stood: Integers = positions < np.repeat(num_stood, lengths)
        told: Floats = np.fromiter(chain.from_iterable(judged), np.float64, len(positions))
        # A drafter may say what is no probability; so is it taken where plans are made.
        told = np.nan_to_num(told).clip(0, 1)
        bins = np.minimum(told * NUM_BINS, NUM_BINS - 1).astype(np.int64)
        places = positions * NUM_BINS + bins
        missing = max(0, int(lengths.max()) - self._sums.shape[1])
        self._sums = np.pad(self._sums, ((0, 0), (0, missing), (0, 0)))
        for sums, weights in zip(self._sums, (np.ones(len(told)), stood, told), strict=True):
            sums += np.bincount(places, weights, sums.size).reshape(sums.shape)
