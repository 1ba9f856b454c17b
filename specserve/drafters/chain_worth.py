"""When a chain should end because another pass costs more than it is likely to bring.

A pass takes time in which the service would make tokens, and what it drafts takes places in the
forward. It brings one token for every block whose tokens so far all stand and whose next one
stands too. Receives confidences, known before their tokens are drawn, and never tokens.
"""

from collections.abc import Sequence

import numpy as np

from specserve.backends.cpu import compiled
from specserve.drafters.protocol import DraftBatch

_FIRST = 0.75  # P(a token stands | those before it do), before any was seen
_SMOOTHING = 0.02  # weight of the newest pass

# Of a call's state, float64: what is looked at, P(a token stands) usually, passes that are made
# whatever they are worth; and of a `Worth` the tokens a second and the price of one.
LOOKS_AT, STANDS, NUM_LEFT, TOKENS_PER_S, PRICE = range(5)
NOTHING, USUAL, CONFIDENCES = range(3)  # what may be looked at; without a worth nothing is


@compiled.shared
def is_worth_it(
    state: np.ndarray,
    survivals: np.ndarray,
    chances: np.ndarray,
    confidences: np.ndarray,
    pass_s: float,
) -> bool:
    """`ChainWorth.goes_on`; survivals and chances float64 [B]."""
    if state[LOOKS_AT] == NOTHING:
        return True
    num_blocks, total = len(survivals), 0.0
    for block in range(num_blocks):
        known = state[STANDS]
        if state[LOOKS_AT] == CONFIDENCES:
            # What is no probability must not stay in the means of all that follows.
            known = confidences[block] if 0.0 <= confidences[block] <= 1.0 else 0.0
        survivals[block] *= known
        total += known
    if state[LOOKS_AT] == CONFIDENCES:
        state[STANDS] += _SMOOTHING * (total / num_blocks - state[STANDS])
    state[NUM_LEFT] -= 1
    gain = 0.0
    for block in range(num_blocks):
        gain += chances[block] * max(0.0, survivals[block] * state[STANDS] - state[PRICE])
    return state[NUM_LEFT] >= 0 or gain > state[TOKENS_PER_S] * pass_s


class ChainWorth:
    """Of one drafter; asked after every pass of its chains."""

    def __init__(self) -> None:
        # Also for compiled chains, which ask for themselves.
        self.state = np.array([NOTHING, _FIRST, 0.0, 0.0, 0.0])
        self.survivals = self.chances = np.empty(0)

    def begin(self, batch: DraftBatch) -> None:
        """A draft call; without a worth no pass is too dear."""
        state, worth, num_blocks = self.state, batch.worth, len(batch.rows)
        self.survivals = np.ones(num_blocks)
        self.chances = np.ones(num_blocks)
        if batch.chances is not None:
            self.chances[:] = batch.chances
        state[NUM_LEFT], state[LOOKS_AT] = batch.least - 1, NOTHING
        if worth is not None:
            state[LOOKS_AT] = CONFIDENCES if worth.may_look else USUAL
            state[TOKENS_PER_S], state[PRICE] = worth.tokens_per_s, worth.token_price

    @property
    def is_looking(self) -> bool:
        """Whether confidences are wanted, which is a wait for an accelerator."""
        return bool(self.state[LOOKS_AT] == CONFIDENCES)

    def goes_on(self, confidences: Sequence[float], pass_s: float) -> bool:
        """After a pass, before its tokens are drawn: whether another of `pass_s` seconds pays.

        confidences: of the tokens about to be drawn, one a block; ignored if nobody `is_looking`.
        """
        known = np.array(confidences, dtype=np.float64)
        return bool(is_worth_it(self.state, self.survivals, self.chances, known, pass_s))
