# pyright: strict
"""The distribution of an answer's first tokens as a tree: what a sampled answer is tested against.

Inner nodes are the prefixes whose next distribution is known. It may name the likeliest tokens
only; an answer that goes elsewhere leaves the tree there, and all such answers are one cell. Knows
neither models nor services.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from specserve.audit.chi_square import Fit, goodness_of_fit

Prefix = tuple[int, ...]
NextDistribution = Mapping[int, float]  # token id to probability; what is missing to 1 is elsewhere

ELSEWHERE = -1  # the last element of a cell: none of the tokens that are named there


class SequenceDistribution(msgspec.Struct, frozen=True):
    """Distributions of the next token after every prefix of the tree, the empty one first."""

    nodes: Mapping[Prefix, NextDistribution]

    def cell(self, token_ids: Sequence[int]) -> Prefix:
        """Where an answer leaves the tree; ValueError if it ends inside."""
        path: Prefix = ()
        for token_id in token_ids:
            distribution = self.nodes.get(path)
            if distribution is None:
                return path
            if token_id not in distribution:
                return (*path, ELSEWHERE)
            path = (*path, token_id)
        if path in self.nodes:
            raise ValueError(f"{len(token_ids)} tokens do not reach the end of the tree")
        return path

    def cells(self) -> dict[Prefix, float]:
        """Every cell with its probability."""
        reached: dict[Prefix, float] = {(): 1.0}
        cells: dict[Prefix, float] = {}
        while reached:
            path, prob = reached.popitem()
            distribution = self.nodes.get(path)
            if distribution is None:
                cells[path] = prob
                continue
            reached |= {(*path, token_id): prob * share for token_id, share in distribution.items()}
            # Rounding may leave a hair of a distribution that names all its tokens: that is
            # nobody's cell.
            rest = 1.0 - sum(distribution.values())
            cells[(*path, ELSEWHERE)] = prob * rest if rest > 1e-6 else 0.0
        return cells

    def fit(self, answers: Iterable[Sequence[int]]) -> Fit:
        """Whether the answers have this distribution."""
        cells = self.cells()
        counts = Counter(self.cell(answer) for answer in answers)
        return goodness_of_fit([counts[cell] for cell in cells], list(cells.values()))

    def pair_fit(self, answers: Sequence[Sequence[int]], num_groups: int = 4) -> Fit:
        """Whether neighbours, 0 and 1, 2 and 3, ..., have the joint distribution of independent
        answers.

        Cells are put into `num_groups` groups of about equal probability first.
        """
        group_of, sizes = self._groups(num_groups)
        drawn = [group_of[self.cell(answer)] for answer in answers]
        counts = Counter(zip(drawn[::2], drawn[1::2], strict=False))
        pairs = [(a, b) for a in range(num_groups) for b in range(num_groups)]
        return goodness_of_fit(
            [counts[pair] for pair in pairs], [sizes[a] * sizes[b] for a, b in pairs]
        )

    def _groups(self, num_groups: int) -> tuple[dict[Prefix, int], list[float]]:
        """The group of each cell, the likeliest cells placed first, and the groups' sizes."""
        group_of: dict[Prefix, int] = {}
        sizes = [0.0] * num_groups
        for cell, prob in sorted(self.cells().items(), key=lambda item: -item[1]):
            smallest = sizes.index(min(sizes))
            group_of[cell] = smallest
            sizes[smallest] += prob
        return group_of, sizes
