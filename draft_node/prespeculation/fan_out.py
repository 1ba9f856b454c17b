# pyright: strict
"""How many outcomes are prepared for each number of accepted tokens: fan-out under a budget.

An outcome is (num_accepted, next token); its probability is that of the number, a product of
confidences, times the hit rate of the token's rank among the candidates (SSD, section 4.2).
Hit rates are measured: averages over all rows and rounds of one kind.

Receives probabilities and ranks alone, never tokens and never noise: in the rejection family the
choice of what is prepared may not depend on noise beyond the position of the next token.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draft_node.prespeculation.outcomes import OutcomeKind

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

NO_RANK = -1  # the token was no candidate


def allocate(weights: Floats, hit_rates: Floats, budget: int) -> Counts:
    """The fan-out of each of S numbers of accepted tokens, together at most `budget`.

    `weights` [S]: the probability of each; `hit_rates` [S, R]: of each rank, given the number, not
    rising with it and zero where there is no candidate. It maximises the sum of what is taken of
    weights * hit_rates: taking the largest is optimal because rates do not rise.
    """
    gains = (weights[:, None] * hit_rates).ravel()
    taken = np.argsort(-gains, kind="stable")[:budget]
    taken = taken[gains[taken] > 0]
    return np.bincount(taken // hit_rates.shape[1], minlength=len(weights))


class HitCurve:
    """How often the token that came had rank 0, 1, ... among the candidates; old rounds fade."""

    def __init__(
        self, num_ranks: int, *, first: float = 0.4, weight: float = 32.0, memory: float = 512.0
    ) -> None:
        """Starts geometric, with `first` at rank 0, as if `weight` rounds had been seen."""
        self._prior = weight * first * (1 - first) ** np.arange(num_ranks)
        self._weight = weight
        self._kept = 1 - 1 / memory
        self._counts = np.zeros(num_ranks)
        self._seen = 0.0
        self._rates: Floats | None = None  # until more is seen

    def observe(self, rank: int) -> None:
        """`NO_RANK`, or one too large, counts as a miss at every rank."""
        self._rates = None
        self._counts *= self._kept
        self._seen = self._seen * self._kept + 1
        if 0 <= rank < len(self._counts):
            self._counts[rank] += 1

    def rates(self) -> Floats:
        """P(rank r) of every rank, [R], above zero and not rising."""
        if self._rates is None:
            rates = (self._prior + self._counts) / (self._weight + self._seen)
            self._rates = np.minimum.accumulate(np.maximum(rates, 1e-9))
        return self._rates


class HitCurves:
    """The curves of all kinds: after a rejection, and after everything was accepted."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self._curves = {
            (kind, is_bonus): HitCurve(num_ranks)
            for kind in OutcomeKind
            for is_bonus in (False, True)
        }

    def observe(self, kind: OutcomeKind, rank: int, *, is_bonus: bool) -> None:
        """The next token of a round had this rank; a bonus follows a block accepted whole."""
        self._curves[kind, is_bonus].observe(rank)

    def recovery_and_bonus(self, kind: OutcomeKind) -> tuple[Floats, Floats]:
        """[R] each: of what follows a rejection, and a block accepted whole."""
        return self._curves[kind, False].rates(), self._curves[kind, True].rates()

    def rates(self, kind: OutcomeKind, verify_len: int, num_candidates: Counts) -> Floats:
        """[S, R] for `allocate`: row k for k accepted tokens of `verify_len`.

        `num_candidates` [S]: ranks that there are.
        """
        recovery, bonus = self.recovery_and_bonus(kind)
        is_bonus = np.arange(len(num_candidates)) >= verify_len
        rates = np.where(is_bonus[:, None], bonus, recovery)
        return np.where(np.arange(self.num_ranks) < num_candidates[:, None], rates, 0.0)


class AcceptancePrior:
    """Running P(token k accepted | those before it were), for drafters without confidences.

    A slot of which little was seen is taken for one like that before it: blocks that never were
    long would else never seem worth being so. Old rounds fade.
    """

    def __init__(
        self, gamma: int, *, prior: float = 0.7, weight: float = 16.0, memory: float = 512.0
    ) -> None:
        """The first slot starts as if `weight` tokens had been seen, `prior` of them accepted."""
        self._prior, self._weight = prior, weight
        self._kept = 1 - 1 / memory
        self._accepted = [0.0] * gamma
        self._seen = [0.0] * gamma

    def observe(self, verify_len: int, num_accepted: int) -> None:
        """One verified block; slots after the first rejection tell nothing."""
        for k in range(min(verify_len, num_accepted + 1, len(self._seen))):
            self._seen[k] = self._kept * self._seen[k] + 1
            self._accepted[k] = self._kept * self._accepted[k] + (k < num_accepted)

    @property
    def confidences(self) -> Sequence[float]:
        found: list[float] = []
        like = self._prior
        for accepted, seen in zip(self._accepted, self._seen, strict=True):
            like = (accepted + self._weight * like) / (seen + self._weight)
            found.append(like)
        return found
