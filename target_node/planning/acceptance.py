# pyright: strict
"""How likely drafted tokens stand: running averages by position, and products along a block.

Who is drafted for, and how long chains without confidences are, follows in `drafted_rounds`; who
has some ends its chains by them (`specserve.drafters.chain_stopping`).

Receives counts and times alone, never tokens: see `specserve.sampling.verification.admission`.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from specserve.drafters.usual_acceptance import UsualAcceptance

FIRST = 5  # tokens, before a draft was timed
_KEPT = 0.995  # a round, of what was seen of a position that is not looked at
_DOUBTED = 8.0  # tokens that count of what was seen before a trial
_REMEMBERED = 1 - 1 / 512  # a token, of what was seen of a position that is
_COVERED = 1 / 64  # weight of the latest round in the share of rows that have a block
_AS_USUAL = 8.0  # expected tokens that a row counts for as one like the others
_OWN_KEPT = 1 - 1 / 64  # a round, of what was seen of a row


class AcceptanceHistory:
    """Running P(position k accepted | those before it were), for drafters without confidences.

    What is not looked at any more is forgotten: a position that is never verified because it was
    rejected once too often would else never get another chance. So is what was long ago of one that
    is: texts change, and a day of one kind would outweigh hours of another.
    """

    def __init__(self, priors: Sequence[float], *, weight: float = 16.0) -> None:
        """Starts as if `weight` tokens had been seen at each position, accepted as `priors` say."""
        self._priors, self._weight = priors, weight
        self._accepted = [prior * weight for prior in priors]
        self._seen = [weight] * len(priors)
        self._num_looked_at = 0  # positions in this round

    def settle(self) -> None:
        """A round of rows that were drafted for is over."""
        prior = (1 - _KEPT) * self._weight
        for k in range(self._num_looked_at, len(self._seen)):
            self._seen[k] = _KEPT * self._seen[k] + prior
            self._accepted[k] = _KEPT * self._accepted[k] + prior * self._priors[k]
        self._num_looked_at = 0

    def doubt(self) -> None:
        """What is seen from now on counts for more than all before: rounds try drafts again."""
        for k, seen in enumerate(self._seen):
            share = min(1.0, _DOUBTED / seen)
            self._seen[k] *= share
            self._accepted[k] *= share

    def observe(self, verify_len: int, num_accepted: int) -> None:
        """One verified block; positions after the first rejection tell nothing."""
        num_verified = min(verify_len, num_accepted + 1)
        self._num_looked_at = max(self._num_looked_at, num_verified)
        for k in range(num_verified):
            self._seen[k] = _REMEMBERED * self._seen[k] + 1
            self._accepted[k] = _REMEMBERED * self._accepted[k] + (k < num_accepted)

    @property
    def confidences(self) -> list[float]:
        return [a / n for a, n in zip(self._accepted, self._seen, strict=True)]


class Acceptance:
    """An `AcceptanceHistory` of every kind of verification: see `mode_speeds.verification_of`."""

    def __init__(self, gamma: int, usual: UsualAcceptance | None = None) -> None:
        """`gamma`: tokens of a block at most; `usual`: what is known beforehand."""
        self.gamma, self._usual = gamma, usual or UsualAcceptance()
        self._longest = gamma
        self._of: dict[str, AcceptanceHistory] = {}
        self._coverage: dict[str, float] = {}
        self._num_covered: dict[str, float] = {}  # rounds that count

    def of_blocks(self, gamma: int) -> "Acceptance":
        """The same of blocks that are no longer: what is seen of the one is known of the other.

        One drafter may draft beside the target and in draft processes, with other lengths.
        """
        found = copy(self)
        found.gamma = min(gamma, self._longest)
        return found

    def coverage(self, kind: str) -> float:
        """The share of rows that there is a block for, where they are drafted for."""
        return self._coverage.get(kind, self._usual.coverage)

    def cover(self, kind: str, share: float) -> None:
        """A round has drafted for rows of this kind, of which such a share has a block."""
        known, count = self.coverage(kind), self._num_covered.get(kind, _DOUBTED) + 1
        self._coverage[kind] = known + max(_COVERED, 1 / count) * (share - known)
        self._num_covered[kind] = count

    def doubt(self, kind: str) -> None:
        """Rounds try drafts again for rows of this kind: they are to decide."""
        self.of(kind).doubt()
        self._num_covered[kind] = _DOUBTED

    def survivals(self, kind: str) -> list[float]:
        """Usual ones, by position."""
        return survival_of(self.of(kind).confidences[: self.gamma])

    def of(self, kind: str) -> AcceptanceHistory:
        if kind not in self._of:
            self._of[kind] = AcceptanceHistory(self._usual.of(kind, self._longest))
        return self._of[kind]

    def settle(self, kinds: Iterable[str]) -> None:
        """A round is over in which rows of these kinds were drafted for."""
        for kind in kinds:
            self.of(kind).settle()

    def freeze(self) -> "FrozenAcceptance":
        """As it is now: nothing that is seen later changes it."""
        gamma = self.gamma
        known = {kind: tuple(history.confidences[:gamma]) for kind, history in self._of.items()}
        return FrozenAcceptance(known, dict(self._coverage), gamma, self._usual)


class FrozenAcceptance:
    """An `Acceptance` at one moment."""

    def __init__(
        self,
        known: Mapping[str, tuple[float, ...]],
        coverage: Mapping[str, float],
        gamma: int,
        usual: UsualAcceptance,
    ) -> None:
        self.gamma = gamma
        self._known, self._coverage, self._usual = known, coverage, usual

    def freeze(self) -> "FrozenAcceptance":
        """It is."""
        return self

    def coverage(self, kind: str) -> float:
        """See `Acceptance`."""
        return self._coverage.get(kind, self._usual.coverage)

    def confidences(self, kind: str) -> Sequence[float]:
        """Usual ones, by position."""
        return self._known.get(kind) or self._usual.of(kind, self.gamma)

    def survivals(self, kind: str) -> list[float]:
        """Products of them along a block."""
        return survival_of(self.confidences(kind))


def survival_of(confidences: Sequence[float]) -> list[float]:
    """Running products: P(positions 0..k are all accepted)."""
    survival: list[float] = []
    product = 1.0
    for confidence in confidences:
        product *= min(confidence, 1.0) if confidence > 0 else 0.0  # so is what is no number
        survival.append(product)
    return survival


class OwnAcceptance:
    """How much more, or less, of one row's drafts stands than is usual of its kind.

    A row that is not drafted for any more becomes one like the others again, after a while.
    """

    def __init__(self) -> None:
        self._accepted = self._expected = 0.0

    @property
    def factor(self) -> float:
        return (self._accepted + _AS_USUAL) / (self._expected + _AS_USUAL)

    def observe(self, survivals: Sequence[float], num_accepted: float) -> None:
        """`survivals`: usual ones, of the positions that were verified."""
        self._accepted = _OWN_KEPT * self._accepted + num_accepted
        self._expected = _OWN_KEPT * self._expected + sum(survivals)

    def pass_over(self) -> None:
        """A round went by in which it was not drafted for."""
        self._accepted *= _OWN_KEPT
        self._expected *= _OWN_KEPT


class LatestSurvivals:
    """Survivals of a row's blocks in its latest rounds."""

    def __init__(self) -> None:
        self._by_round: dict[int, Sequence[float]] = {}

    def pushed(
        self, number: int, survival: Sequence[float], prior: Sequence[float]
    ) -> Sequence[float]:
        """Those of two rounds before round `number`, or the prior; keeps this one's."""
        before = self._by_round.get(number - 2, prior)
        self._by_round = {n: s for n, s in self._by_round.items() if n > number - 2}
        self._by_round[number] = survival
        return before
