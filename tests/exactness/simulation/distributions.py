"""The distributions of rows that the simulation decodes, and chi-square tests of what came out.

A row is of one of several kinds: its target's and its draft's distributions stand in a table by
position, and begin at another place of it than its neighbours' do. Rows of all kinds share every
batch.
"""

import torch

from specserve.audit.chi_square import Fit, goodness_of_fit, survival

# What targets and drafts have at three positions, after which they have it again.
_USUAL = [[0.55, 0.3, 0.15, 0], [0.1, 0.3, 0.6, 0], [0.4, 0.4, 0.2, 0]]
DIFFERENT = (_USUAL, [[0.3, 0.3, 0.4, 0], [0.4, 0.35, 0.25, 0], [0.25, 0.65, 0.1, 0]])
EQUAL = (_USUAL, _USUAL)
ONE_HOT = (_USUAL, [[0, 0, 1, 0]] * 3)
ZEROS = (
    [[0.6, 0.4, 0, 0], [0, 0.3, 0.7, 0], [0.5, 0, 0, 0.5]],
    [[0.1, 0.1, 0.8, 0], [0.9, 0, 0.1, 0], [0, 0.6, 0.4, 0]],
)
# More tokens than a draft's distribution keeps here, so that it is cut.
LONG_TAIL = (
    [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.3, 0.2]],
    [[0.1, 0.2, 0.3, 0.4], [0.3, 0.4, 0.2, 0.1], [0.4, 0.1, 0.3, 0.2]],
)
ALL = (DIFFERENT, EQUAL, ONE_HOT, ZEROS, LONG_TAIL)
VOCAB_SIZE, NUM_KEPT = 4, 3


class Distributions:
    """`targets` and `drafts`, [kinds, period, V]: of row r at position p those of kind r % kinds
    and place p % period.
    """

    def __init__(self, pairs=ALL):
        # Kinds that begin at every place of a table, and siblings never of one table alone.
        turned = [
            [table[turn:] + table[:turn] for table in pair] for turn in range(3) for pair in pairs
        ]
        self.targets, self.drafts = (torch.tensor(tables) for tables in zip(*turned, strict=True))
        self.num_kinds = len(turned)

    def at(self, tables, rows, positions):
        """int64 [N] twice to [N, V]"""
        return tables[rows % self.num_kinds, positions % tables.shape[1]]

    def outputs(self, kind, position, num_tokens):
        """The probabilities of all that a row may say from there, flattened, float64."""
        distribution = torch.ones(1, dtype=torch.float64)
        for place in range(position, position + num_tokens):
            probs = self.targets[kind, place % self.targets.shape[1]].double()
            distribution = torch.outer(distribution, probs / probs.sum()).flatten()
        return distribution

    def counts(self, cells, num_cells):
        """How often rows of each kind ended in which cell: [kinds, cells], of int64 [N] in order
        of rows."""
        kinds = torch.arange(len(cells)) % self.num_kinds
        found = torch.bincount(kinds * num_cells + cells, minlength=self.num_kinds * num_cells)
        return found.view(self.num_kinds, num_cells)


def cells(tokens):
    """Each row of `tokens` [N, T] as one number, as `Distributions.outputs` are ordered."""
    index = torch.zeros_like(tokens[:, 0])
    for column in tokens.unbind(dim=1):
        index = index * VOCAB_SIZE + column
    return index


def fit(counts, distributions):
    """Of all kinds together: counts [kinds, cells] and as many distributions. Their statistics add
    up.
    """
    fits = [
        goodness_of_fit(each.tolist(), distribution.tolist())
        for each, distribution in zip(counts, distributions, strict=True)
    ]
    statistic, freedom = sum(f.statistic for f in fits), sum(f.freedom for f in fits)
    return Fit(statistic=statistic, num_cells=freedom + 1, p_value=survival(statistic, freedom))
