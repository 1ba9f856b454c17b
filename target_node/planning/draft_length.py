# pyright: strict
"""How many tokens a chain drafts: as many as make the round's tokens a second largest.

For drafters that go token by token and have no confidences: whoever has some ends its chains by
them (`specserve.drafters.chain_stopping`). Receives usual survivals and times, written down
before the round, and never tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from specserve.sampling.verification.admission import StepCosts
from target_node.planning.step_table import Line

FIRST = 5  # tokens, before a draft was timed
_CLOSE = (
    0.99  # of the best speed: of lengths as fast as that the shortest drafts, and verifies least
)


class RoundAhead(NamedTuple):
    """A round, as far as it is known before it drafts."""

    num_rows: int  # that are drafted for
    num_tokens: int  # of its forward without drafted ones: anchors, prompts
    costs: StepCosts
    before: Line  # seconds until its forward, by tokens of a chain


def best_length(survivals: Sequence[float], ahead: RoundAhead) -> int:
    """At least 1, at most as many as there are `survivals`: usual ones, by position."""
    lengths = np.arange(1, len(survivals) + 1)
    tokens = ahead.num_rows * (1 + np.cumsum(survivals))
    seconds = ahead.costs.seconds(ahead.num_tokens + ahead.num_rows * lengths)
    seconds = seconds + ahead.before.fixed_s + lengths * ahead.before.token_s
    speeds = tokens / seconds
    return int(np.argmax(speeds >= _CLOSE * speeds.max())) + 1
