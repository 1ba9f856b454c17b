# pyright: strict
"""The speed of speculation in closed form, as SSD (Saguaro) derives it.

Times are in units of one verification, lengths in tokens a round with the recovery or bonus token.
A round's drafted tokens stand one after another with the same chance, unless lengths are given.
"""

import math


def expected_tokens(accept_rate: float, lookahead: int) -> float:
    """Of a round that verifies so many tokens: (1 - a ** (K + 1)) / (1 - a)."""
    if accept_rate >= 1:
        return lookahead + 1.0
    return (1 - accept_rate ** (lookahead + 1)) / (1 - accept_rate)


def accept_rate_of(num_tokens: float, lookahead: int) -> float:
    """The other way round: what makes so many tokens a round; 0 or 1 where no rate does."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, lookahead) < num_tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def synchronous_speedup(num_tokens: float, draft_time: float) -> float:
    """Over plain decoding: a round drafts, then verifies."""
    return num_tokens / (1 + draft_time)


def speedup(
    hit_rate: float, hit_len: float, miss_len: float, *, draft_time: float, backup_time: float
) -> float:
    """Theorem 7: asynchronous speculation over decoding without any.

    [p E_hit + (1 - p) E_miss] / [p max(1, T_p) + (1 - p) (1 + T_b)]. A target that does not wait
    for late drafts has T_p <= 1: lateness is in the hit rate then.
    """
    tokens = hit_rate * hit_len + (1 - hit_rate) * miss_len
    return tokens / (hit_rate * max(1.0, draft_time) + (1 - hit_rate) * (1 + backup_time))


def hit_rate(after_primary: float, after_backup: float) -> float:
    """Theorem 7: of all rounds, from the hit rates after a hit and after a miss."""
    return after_backup / (1 - after_primary + after_backup)


def over_synchronous(
    hit_rate: float, hit_len: float, sync_len: float, sync_draft_time: float
) -> tuple[float, float]:
    """Corollary 9: bounds of asynchronous over synchronous, where misses decode plainly.

    Drafts are done in time, and misses cost no time.
    """
    most = (1 + sync_draft_time) * hit_len / sync_len
    return (1 + sync_draft_time) * (hit_rate * hit_len + 1 - hit_rate) / sync_len, most


def batch_speedup(
    num_rows: int, hit_rate: float, hit_len: float, miss_len: float, backup_time: float
) -> float:
    """Corollary 16: all rows wait for the backup as soon as one missed."""
    tokens = hit_rate * hit_len + (1 - hit_rate) * miss_len
    return tokens / (1 + (1 - hit_rate**num_rows) * backup_time)


def critical_batch_size(
    hit_rate: float,
    slow_len: float,
    fast_len: float,
    slow_time: float,
    *,
    fast_hit_rate: float | None = None,
) -> float:
    """Theorem 17: rows up to which waiting for the slow backup is faster than the fast one.

    Infinite where waiting always is. `fast_hit_rate`: where what stands in for a miss makes
    outcomes less likely to have been prepared.
    """
    with_fast = hit_rate if fast_hit_rate is None else fast_hit_rate
    of_fast = with_fast * slow_len + (1 - with_fast) * fast_len
    left = 1 - (slow_len / of_fast - 1) / slow_time
    return math.inf if left <= 0 else math.log(left) / math.log(hit_rate)


def geometric_fan_out(
    budget: float, lookahead: int, accept_rate: float, power: float
) -> list[float]:
    """Theorem 12: outcomes to prepare for 0 .. K accepted tokens, under a power law of hits.

    `power` is r of 1 - h(F) = F ** -r.
    """
    share = 1 / (1 + power)
    falls = accept_rate**share
    last = falls**lookahead * (1 - accept_rate) ** -share
    first = budget / ((1 - falls**lookahead) / (1 - falls) + last)
    return [*(first * falls**k for k in range(lookahead)), first * last]


def prepared_share(fan_out: list[float], accept_rate: float, power: float) -> float:
    """Theorem 18's objective: the chance that what comes was prepared, under that power law."""
    lookahead = len(fan_out) - 1
    chances = [accept_rate**k * (1 - accept_rate) for k in range(lookahead)]
    chances.append(accept_rate**lookahead)
    hits = [1 - count**-power for count in fan_out]
    return sum(chance * hit for chance, hit in zip(chances, hits, strict=True))
