"""Warm-up, stable, decay: the learning rate as a function of active training seconds.

Active seconds are the sum of step times, so the same command fits any machine. A step much longer
than usual (the process was stopped, a kernel was compiled) counts as a usual one.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

OUTLIER = 5.0
WINDOW = 31


@dataclass(frozen=True)
class Schedule:
    """Durations in seconds of active training."""

    total_s: float
    decay_s: float
    warmup_s: float = 60.0

    def scale(self, active_s: float) -> float:
        """Fraction of the peak learning rate, 0..1."""
        warmup = min(1.0, (active_s + 1e-9) / max(1e-9, min(self.warmup_s, 0.1 * self.total_s)))
        return max(0.02, warmup) * (1.0 - self.decay_progress(active_s) ** 0.5)

    def decay_progress(self, active_s: float) -> float:
        """0 before the decay, 1 at its end. The rate falls as 1 - sqrt (Haegele et al. 2024)."""
        start = self.total_s - self.decay_s
        return min(1.0, max(0.0, (active_s - start) / max(1e-9, self.decay_s)))

    def finished(self, active_s: float) -> bool:
        """Whether training is over."""
        return active_s >= self.total_s


class ActiveClock:
    """Sums step times, counting outliers as the median of recent steps."""

    def __init__(self, active_s: float = 0.0, recent: list[float] | None = None) -> None:
        self.active_s = active_s
        self._recent = deque(recent or [], maxlen=WINDOW)

    def add(self, step_s: float) -> float:
        """Account for one step and return the seconds it counts for."""
        counted = step_s
        if len(self._recent) >= 5 and step_s > OUTLIER * median(self._recent):
            counted = median(self._recent)
        self._recent.append(counted)
        self.active_s += counted
        return counted

    @property
    def recent(self) -> list[float]:
        """Recent counted step times, for checkpoints."""
        return list(self._recent)
