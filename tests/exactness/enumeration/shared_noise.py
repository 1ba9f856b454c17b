"""The exact joint distribution of two exponential samplings with the same noise.

With s and t the winning times under p and q, E_i = p_i s and E_j = q_j t for the winners i and j,
and every other E_k exceeds max(p_k s, q_k t). The density is p_i q_j exp(-s c(t/s)); integrating s
leaves 1 / c(r)^2 over the ratio r = t/s, where c is linear between the ratios p_k / q_k.
"""

import itertools
import math


def joint_distribution(p, q):
    """P(winner under p is i, winner under q is j) for two distributions given as lists; a list of
    lists.
    """
    ids = range(len(p))
    return [[_both_win(p, q, i) if i == j else _win(p, q, i, j) for j in ids] for i in ids]


def _both_win(p, q, i):
    if p[i] == 0 or q[i] == 0:
        return 0.0
    return 1 / sum(max(p[k] / p[i], q[k] / q[i]) for k in range(len(p)))


def _win(p, q, i, j):
    """i and j differ: r runs from p_j / q_j, where j would win under p too, to p_i / q_i."""
    if p[i] == 0 or q[j] == 0:
        return 0.0
    low, high = p[j] / q[j], p[i] / q[i] if q[i] else math.inf
    if low >= high:
        return 0.0
    others = [k for k in range(len(p)) if k not in (i, j)]
    turns = (p[k] / q[k] for k in others if q[k])
    cuts = [low, *sorted(r for r in turns if low < r < high), high]
    total = 0.0
    for left, right in itertools.pairwise(cuts):
        middle = left + 1 if math.isinf(right) else (left + right) / 2
        constant = p[i] + sum(p[k] for k in others if p[k] >= q[k] * middle)
        slope = q[j] + sum(q[k] for k in others if p[k] < q[k] * middle)
        # The integral of 1 / (constant + slope r)^2, written without a difference of quotients.
        at_left = constant + slope * left
        if math.isinf(right):
            total += 1 / (slope * at_left)
        else:
            total += (right - left) / (at_left * (constant + slope * right))
    return p[i] * q[j] * total
