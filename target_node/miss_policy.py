"""What a row does in a round without a pushed block: nothing, its own text, a draft here, or wait.

SSD's Theorem 17 compares two fall-backs at one load; here every term is measured while serving, so
the choice follows the load by itself. A round of R rows, M of them missed, makes in expectation

    SKIP        (R - M) * L      + M                 tokens in  T(V)
    NGRAM       (R - M) * L      + M * L_ngram       tokens in  T(V_ngram)    + T_ngram
    DRAFT_HERE  (R - M) * L      + M * L_here        tokens in  T(V_here)     + T_here
    DRAFT_NOW   (R - M) * L      + M * L_answered    tokens in  T(V_answered) + T_wait

with L the tokens that a drafted row makes, and L_answered those of one that waited, in vain or not:
a block that was asked for is often longer than one that had to be ready before. T is a line, since
a round takes the longer the more tokens it verifies: V counts them all, those of missed rows by
what blocks of their kind had admitted.

How many rows miss is itself a matter of what is done about it: the drafts have as long as a round
takes, and know more of what they drafted themselves. If a row hits in a share h of the rounds after
a hit and in a share m of those after this kind of miss, it misses (1 - h) / (1 - h + m) of its
rounds as long as this is done: so many are M, and the fastest such life is chosen.

Times are kept apart by the number of rows concerned, in powers of two. Receives counts and times,
never tokens.
"""

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from target_node.token_times import TokenTimes

_SMOOTHING = 0.05  # weight of the newest figure
_FIRST_TRIES = 6  # of each fall-back: whichever looked good first would stay so
# Misses of which the first few try one fall-back after the other from then on. In runs, because the
# first of a run says little: contexts that were not asked for long catch up in it.
_PROBE_EVERY, _RUN = 64, 4


class Miss(enum.StrEnum):
    """What to do with a row that has no block."""

    SKIP = "skip"
    NGRAM = "ngram"  # look in its own text
    DRAFT_HERE = "draft_here"  # by the drafter on the target's device
    DRAFT_NOW = "draft_now"  # by the draft process, while the target waits


# Before anything was measured: tokens of a block that are verified, and of those accepted. Drafts
# take no time then, and a forward this.
_PRIORS = {
    Miss.SKIP: (0.0, 0.0),
    Miss.NGRAM: (1.0, 0.5),
    Miss.DRAFT_HERE: (2.0, 1.0),
    Miss.DRAFT_NOW: (2.0, 1.0),
}
_PRIOR_VERIFY_S = 0.03
_PRIOR_HITS = 0.5  # share of rows
_LEAST_S = 1e-6  # of a round, whatever a line says
_LEAST_MISSES = 0.02  # share of rows that miss after a hit, likewise


class MissPolicy:
    """Chooses by measured figures, or always the same where told so."""

    def __init__(
        self,
        *,
        fixed: Miss | None = None,
        kinds: Collection[Miss] = (Miss.NGRAM,),
        max_wait_s: float = 0.05,
        device_type: str = "cpu",
    ) -> None:
        """`kinds`: what there is besides SKIP and DRAFT_NOW; `max_wait_s` bounds every wait."""
        self.max_wait_s = max_wait_s
        self._device_type = device_type
        self._fixed = fixed
        self._kinds = tuple(miss for miss in Miss if miss in kinds)
        self._pushed = _Fared(2.0, 1.0)  # blocks that were there
        self._fared = {miss: _Fared(*prior) for miss, prior in _PRIORS.items()}
        self._answered = _Mean(1.0)  # share of rows for which waiting brought a block
        self._hit_after_hit = _Mean(_PRIOR_HITS)
        self._hit_after = {miss: _Mean(_PRIOR_HITS) for miss in Miss}
        self._rounds: dict[tuple[int, bool], TokenTimes] = {}  # by load, beside prompts or not
        self._cost_s: dict[tuple[Miss, int], _Mean] = {}  # by fall-back and load
        self._num_misses = 0
        self._num_tries: Counter[Miss] = Counter()

    def choose(
        self, *, num_missed: int, num_hits: int, can_wait: bool, num_besides: int = 0
    ) -> Miss:
        """For all missed rows of a round alike; `can_wait`: drafts for all of them are there.

        `num_besides`: tokens of prompts in the same forward.
        """
        if self._fixed is not None:
            may = self._fixed is not Miss.DRAFT_NOW or can_wait
            return self._fixed if may else Miss.SKIP
        round_ = _Round(num_missed, num_hits, num_besides)
        miss = self._best_or_tried(round_, can_wait=can_wait)
        self._num_tries[miss] += 1
        return miss

    def _best_or_tried(self, round_: "_Round", *, can_wait: bool) -> Miss:
        self._num_misses += 1
        tries = [*self._kinds, Miss.DRAFT_NOW] if can_wait else list(self._kinds)
        new = [miss for miss in tries if self._num_tries[miss] < _FIRST_TRIES]
        if new:
            return new[0]
        turn, place = divmod(self._num_misses, _PROBE_EVERY)
        if tries and place < _RUN:
            return tries[turn % len(tries)]
        speeds = {m: self._speed(m, round_) for m in (Miss.SKIP, *tries)}
        return max(speeds, key=lambda miss: speeds[miss])

    def observe(self, kind: Miss | None, verify_len: int, num_accepted: int) -> None:
        """One row that was to have a block; `kind`: how it came by it, None: it was there."""
        fared = self._pushed if kind is None else self._fared[kind]
        fared.verified.add(verify_len)
        fared.accepted.add(num_accepted)

    def followed(self, before: Miss | None, *, is_hit: bool) -> None:
        """A row's next round; `before`: what was done about its miss, None: it had hit."""
        share = self._hit_after_hit if before is None else self._hit_after[before]
        share.add(float(is_hit))

    def verified(
        self, num_rows: int, num_tokens: int, seconds: float, *, num_besides: int = 0
    ) -> None:
        """A round of `num_tokens` took so long, all of it but for what its misses cost."""
        load = (_bucket(num_rows), num_besides > 0)
        times = self._rounds.setdefault(load, TokenTimes(self._device_type))
        times.add(num_tokens, seconds)

    def spent(self, miss: Miss, num_missed: int, seconds: float, *, is_first: bool = False) -> None:
        """A fall-back held up one round for so long; `is_first`: another was used before.

        Then contexts caught up in it: believed only as long as nothing else is known.
        """
        cost = self._cost(miss, num_missed)
        if not is_first or not cost.value:
            cost.add(seconds)

    def answered(self, share: float) -> None:
        """One wait brought blocks for this share of its rows."""
        self._answered.add(share)

    def _speed(self, miss: Miss, round_: "_Round") -> float:
        """Tokens a second."""
        pushed, fared = self._pushed, self._fared[miss]
        answered = self._answered.value if miss is Miss.DRAFT_NOW else 1.0
        # Hits without end say nothing of the misses that there are now.
        leaves = max(1 - self._hit_after_hit.value, _LEAST_MISSES)
        rows = round_.num_hits + round_.num_missed
        missed = rows * leaves / (leaves + self._hit_after[miss].value)
        hits = rows - missed
        made = hits * (1 + pushed.accepted.value) + missed * (1 + answered * fared.accepted.value)
        num_tokens = (
            round_.num_besides
            + hits * (1 + pushed.verified.value)
            + missed * (1 + answered * fared.verified.value)
        )
        before_s = 0.0 if miss is Miss.SKIP else self._cost(miss, round(missed)).value
        return made / (self._verify_s(round_, num_tokens) + before_s)

    def _verify_s(self, round_: "_Round", num_tokens: float) -> float:
        load = (_bucket(round_.num_missed + round_.num_hits), round_.num_besides > 0)
        times = self._rounds.get(load)
        return _PRIOR_VERIFY_S if times is None else max(times.expected(num_tokens), _LEAST_S)

    def _cost(self, miss: Miss, num_missed: int) -> "_Mean":
        return self._cost_s.setdefault((miss, _bucket(num_missed)), _Mean(0.0))


class _Mean:
    """The mean of a prior and the first figures, and then an exponential moving average."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._count = 1

    def add(self, figure: float) -> None:
        self._count += 1
        self.value += max(_SMOOTHING, 1 / self._count) * (figure - self.value)


class _Fared:
    """What became of the blocks of one kind."""

    def __init__(self, verified: float, accepted: float) -> None:
        self.verified, self.accepted = _Mean(verified), _Mean(accepted)  # tokens of a block


@dataclass(frozen=True)
class _Round:
    num_missed: int  # rows
    num_hits: int
    num_besides: int  # tokens of prompts


def _bucket(num_rows: int) -> int:
    return max(num_rows, 1).bit_length()
