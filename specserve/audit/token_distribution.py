# pyright: strict
"""The distribution of one token in its context, as the target's largest log probabilities give it
away.

A token drawn from its distribution has a percentile that is uniform, whatever the distribution and
whatever came before (Rosenblatt): tokens of all contexts are one sample. Knows neither models nor
services.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from specserve.audit.chi_square import Fit, goodness_of_fit
from specserve.client import Options
from specserve.types import Logprobs

IMPOSSIBLE = 1.0  # the percentile of a token that the distribution does not have
NUM_CELLS = 8  # of equal probability, into which percentiles are counted
_LARGEST = 1.0 - 2.0**-53  # of all others: sums of probabilities may round up


@dataclass(frozen=True)
class TokenDistribution:
    """Probabilities of the likeliest tokens, these first; of all that there are if `is_whole`."""

    named: dict[int, float]
    is_whole: bool

    @property
    def doubt(self) -> float:
        """How often another token than the likeliest comes."""
        return 1.0 - next(iter(self.named.values()))

    def percentile(self, token_id: int, draw: float) -> float:
        """Where the token lies among all, likeliest first; `draw` in [0, 1) says where within it.

        Tokens without a name share what is left: which of them it is, is not looked at.
        """
        below = 0.0
        for named, prob in self.named.items():
            if named == token_id:
                return min(below + draw * prob, _LARGEST)
            below += prob
        if self.is_whole:
            return IMPOSSIBLE
        return min(below + draw * max(0.0, 1.0 - below), _LARGEST)


@dataclass(frozen=True)
class SamplingCase:
    """How answers are sampled, and what that makes of the target's log probabilities.

    Temperature and penalties need `top_k`: else the mass of what has no name would be unknown.
    Repetition penalties are missing, because log probabilities do not tell a logit's sign.
    """

    name: str
    temperature: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def options(self) -> Options:
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }

    def distribution(
        self, record: Logprobs, earlier: Sequence[int], rounding: float
    ) -> TokenDistribution | None:
        """The distribution after the answer's `earlier` tokens; None where its support is in doubt.

        That is where the last token of the top k and the next one, which may have no name, are
        not further apart than `rounding`. It depends on what came before the token alone.
        """
        values = dict(zip(record.top_ids, record.top_logprobs, strict=True))
        if not self.top_k:
            return TokenDistribution({i: exp(value) for i, value in values.items()}, is_whole=False)
        least = min(values.values())  # more than anything without a name has, before penalties
        for token_id, count in Counter(earlier).items():
            if token_id in values:
                values[token_id] -= self.frequency_penalty * count + self.presence_penalty
        ranked = sorted(values, key=lambda token_id: -values[token_id])
        kept, others = ranked[: self.top_k], ranked[self.top_k :]
        if values[kept[-1]] - max([least, *(values[i] for i in others[:1])]) <= rounding:
            return None
        weights = {i: exp((values[i] - values[kept[0]]) / self.temperature) for i in kept}
        total = sum(weights.values())
        return TokenDistribution(
            {i: weight / total for i, weight in weights.items()}, is_whole=True
        )


def fit(percentiles: Sequence[float]) -> Fit:
    """Whether they are uniform. One that is `IMPOSSIBLE` has p-value 0; none at all has 1."""
    if not percentiles:
        return Fit(statistic=0.0, num_cells=1, p_value=1.0)
    cells = Counter(NUM_CELLS if p == IMPOSSIBLE else int(p * NUM_CELLS) for p in percentiles)
    probs = [1 / NUM_CELLS] * NUM_CELLS + [0.0]
    return goodness_of_fit([cells[cell] for cell in range(NUM_CELLS + 1)], probs)
