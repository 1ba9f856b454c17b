"""Warm-up, stable, decay: the learning rate as a function of active seconds, or of steps.

Active seconds are the sum of step times, so the same command fits any machine. A step much longer
than usual (the process was stopped, a kernel was compiled) counts as a usual one. Steps make a run
the same on every machine, however long it takes there.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

OUTLIER = 5.0
WINDOW = 31
DECAY_SHARE = 0.5  # of a drafter's run
WARMUP_STEPS = 50.0


@dataclass(frozen=True)
class Schedule:
    """Durations in seconds of active training, or in steps; what is `elapsed` is in the same."""

    total: float
    decay: float
    warmup: float = 60.0
    in_steps: bool = False

    @staticmethod
    def of_drafter(minutes: float, steps: int | None, warmup_s: float) -> "Schedule":
        """A drafter's run of so many steps, or where there is no such wish, of so many minutes."""
        if steps is not None:
            return Schedule(steps, DECAY_SHARE * steps, WARMUP_STEPS, in_steps=True)
        return Schedule(minutes * 60, DECAY_SHARE * minutes * 60, warmup_s)

    def elapsed(self, active_s: float, step: int) -> float:
        """How much of `total` is over after so many active seconds and steps."""
        return step if self.in_steps else active_s

    def scale(self, elapsed: float) -> float:
        """Fraction of the peak learning rate, 0..1."""
        warmup = min(1.0, (elapsed + 1e-9) / max(1e-9, min(self.warmup, 0.1 * self.total)))
        return max(0.02, warmup) * (1.0 - self.decay_progress(elapsed) ** 0.5)

    def decay_progress(self, elapsed: float) -> float:
        """0 before the decay, 1 at its end. The rate falls as 1 - sqrt (Haegele et al. 2024)."""
        start = self.total - self.decay
        return min(1.0, max(0.0, (elapsed - start) / max(1e-9, self.decay)))

    def finished(self, elapsed: float) -> bool:
        """Whether training is over."""
        return elapsed >= self.total


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
