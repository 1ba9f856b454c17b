# pyright: strict
"""Who is behind the speed that its request asked for, and how much more its drafted tokens count.

A request may ask for tokens a second (`Request.min_tokens_per_s`). A sample that has made fewer
since it began to decode gets more of what drafts compete for: its survivals count `weight_of` times
as much against those of others and against what a token costs. That moves places; it makes none.

Receives counts and times, never tokens, and is asked when admission writes down what it knows: what
a sample makes in a round changes no weight of that round.
"""

import time
from collections.abc import Iterable

from target_node.sequence import Sequence

MOST_WEIGHT = 4.0  # however far behind: others have to get on, too


def weight_of(sequence: Sequence, now_s: float) -> float:
    """1 for who asked for nothing, has made no token, or is not behind; else target over pace.

    `now_s`: CLOCK_MONOTONIC seconds. At most `MOST_WEIGHT`. The pace is that of the sample's whole
    life, its preemptions included, as the one who reads it sees it.
    """
    wanted, since_s = sequence.request.min_tokens_per_s, sequence.decodes_since_s
    if wanted is None or since_s is None:
        return 1.0
    expected = wanted * (now_s - since_s)  # tokens
    return min(MOST_WEIGHT, max(1.0, expected / sequence.num_generated))


def weights_of(sequences: Iterable[Sequence]) -> dict[Sequence, float]:
    """Of those that are behind now; whoever is missing counts once."""
    aiming = [each for each in sequences if each.request.min_tokens_per_s is not None]
    if not aiming:
        return {}
    now_s = time.monotonic()
    weights = {each: weight_of(each, now_s) for each in aiming}
    return {each: weight for each, weight in weights.items() if weight > 1.0}
