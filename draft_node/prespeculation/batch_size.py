# pyright: strict
"""How many blocks a draft batch has: as many as are over in time; of chains, as many as pay.

What is drafted token by token ends in time whatever the size, so there more blocks are shorter
ones: a draft batch prepares more outcomes, and each brings fewer tokens. Receives probabilities,
counts and times, never tokens.

The target says how long its rounds usually take. The next one may be shorter, blocks have to be
scored and sent when they are drafted, and others may have had the core. All of that shows in what
became of the blocks for the outcomes that came (`DeadlineMargin`): they were verified, or the
target had looked before they were there.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from draft_node.prespeculation.batch_cost import BatchCost
from draft_node.prespeculation.fan_out import AcceptancePrior, Floats
from specserve.drafters.step_timer import LEAST_PASSES
from specserve.types import DraftTime

# What a hit is worth besides the tokens that stand: who misses has its own block drafted first, and
# is waited for or decodes plainly. (It was half of what the longest block brings, beside which
# shorter ones seemed worth nothing where nearly all tokens stand.)
_HIT = 0.25  # tokens


class BatchSize:
    """Of one drafter, by family of methods: with distributions to compute and send, or not."""

    def __init__(self, prior: AcceptancePrior, *, by_token: bool, usual_tokens: int) -> None:
        """`by_token`: blocks are chains that end in time, after two tokens at least.

        `usual_tokens`: of a chain, if there is time.
        """
        self._prior = prior
        self._by_token = by_token
        self._usual_tokens = usual_tokens
        # Of a draft batch (of chains: of one token each), and of one more token of each chain.
        self._costs = {True: BatchCost(), False: BatchCost()}
        self._token_costs = {True: BatchCost(), False: BatchCost()}

    def know(self, times: Iterable[DraftTime], gamma: int) -> None:
        """What the start measured stands for the first draft batches."""
        for each in times:
            for needs_probs in (False, True):
                self.observe(
                    needs_probs=needs_probs,
                    num_blocks=each.num_blocks,
                    num_tokens=gamma,
                    seconds=each.seconds(gamma),
                    token_s=each.token_s,
                )

    def observe(
        self,
        *,
        needs_probs: bool,
        num_blocks: int,
        num_tokens: int,
        seconds: float,
        token_s: float = 0.0,
    ) -> None:
        """A batch of blocks of `num_tokens` each, one more of which would have taken `token_s`.

        0: nobody knows. A draft batch takes long before its first token: noise, page tables, tokens
        that enter. Spread over two tokens it would make long chains look too dear for ever.
        """
        if self._by_token:
            token_s = token_s or seconds / num_tokens
            self._token_costs[needs_probs].observe(num_blocks, token_s)
            seconds = max(token_s, seconds - (num_tokens - 1) * token_s)
        self._costs[needs_probs].observe(num_blocks, seconds)

    def least_s(self, num_blocks: int, *, needs_probs: bool) -> float:
        """Seconds that so many blocks take at least; 0 where nobody has drafted any."""
        cost = self._costs[needs_probs]
        if not cost.is_known:
            return 0.0
        more = LEAST_PASSES - 1 if self._by_token else 0
        tokens_s = more * self._token_costs[needs_probs].seconds(num_blocks) if more else 0.0
        return cost.seconds(num_blocks) + tokens_s

    def size(self, most: int, *, needs_probs: bool, left_s: float, values: Sequence[Floats]) -> int:
        """At most `most`, 0 if too little time is left for any.

        `values`: of outcomes to draft for, row by row.
        """
        cost = self._costs[needs_probs]
        if math.isinf(left_s) or not cost.is_known:
            return most
        if not self._by_token:
            return int(min(most, max(0.0, cost.largest_within(left_s))))
        ranked = np.sort(np.concatenate(list(values)))[::-1][:most]
        worth = _worth_by_length(self._prior.confidences[: self._usual_tokens])
        best, best_gain, probability = 0, 0.0, 0.0
        for size, value in enumerate(ranked.tolist(), start=1):
            probability += value
            more = (left_s - cost.seconds(size)) / self._token_costs[needs_probs].seconds(size)
            num_tokens = int(min(1 + more, len(worth)))
            if num_tokens < LEAST_PASSES:
                break
            gain = probability * worth[num_tokens - 1]
            if gain > best_gain:
                best, best_gain = size, gain
        return best


def _worth_by_length(confidences: Sequence[float]) -> list[float]:
    """What a hit is worth with a block of 1, 2, ... tokens, the last of which stays behind."""
    standing = np.concatenate([[0.0], np.cumprod(confidences[:-1])]).cumsum()
    return (_HIT + standing).tolist()


_FIRST, _LEAST, _MOST = 0.85, 0.5, 1.0
# With a block in time, and with a late one: one in eleven is late then.
_UP, _DOWN = 0.004, 0.04


class DeadlineMargin:
    """How much of the time until the target looks may be drafted in; of one draft process."""

    def __init__(self) -> None:
        self.share = _FIRST  # of the time there is
        self._num_blocks = self._num_late = 0  # of the report that is being read

    def observe(self, *, was_late: bool) -> None:
        """A row's outcome had a block."""
        self._num_blocks += 1
        self._num_late += was_late

    def settle(self) -> None:
        """All rows of a report were observed: they had one round, and count as one."""
        if self._num_blocks:
            late = self._num_late / self._num_blocks
            self.share = min(_MOST, max(_LEAST, self.share + _UP * (1 - late) - _DOWN * late))
        self._num_blocks = self._num_late = 0
