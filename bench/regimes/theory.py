# pyright: strict
"""What the seeds' theorems make of measured parts. Pure arithmetic.

Times are in units of one verification, lengths in tokens a round.
"""


def speedup(
    hit_rate: float, hit_len: float, miss_len: float, *, draft_time: float, backup_time: float
) -> float:
    """SSD, Theorem 7: asynchronous speculation over decoding without any.

    [p E_hit + (1 - p) E_miss] / [p max(1, T_p) + (1 - p) (1 + T_b)]. A target that does not wait
    for late drafts has T_p <= 1: lateness is in the hit rate then.
    """
    tokens = hit_rate * hit_len + (1 - hit_rate) * miss_len
    return tokens / (hit_rate * max(1.0, draft_time) + (1 - hit_rate) * (1 + backup_time))


def hit_rate(after_primary: float, after_backup: float) -> float:
    """SSD, Theorem 7: of all rounds, from the hit rates after a hit and after a miss."""
    return after_backup / (1 - after_primary + after_backup)
