"""A round's rows in groups that are sampled one after the other, and their outcomes put together.

Rows whose logits a grammar edits would take those beside them from the ways that a backend has
compiled for rows as they mostly are. What a row draws does not depend on its neighbours, so it may
as well have others.
"""

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate

import torch

from specserve.backends.base import VerifiedRows
from specserve.sampling.draft_probs import DraftProbs
from target_node.scheduler import Row


@dataclass(frozen=True)
class RoundToSample:
    """Rows that sample, their logits row after row, and distributions of what `by_ratio` drafted.

    `logits` float32 [N, V], one more than drafted tokens for each row; `draft_probs` [D].
    """

    rows: Rows[Row]
    logits: torch.Tensor
    draft_probs: DraftProbs | None
    by_ratio: Rows[bool]  # of the rows: whether their drafted tokens have distributions

    def part(self, places: Rows[int]) -> "RoundToSample":
        """Of the rows at these places alone."""
        lens = [row.verify_len for row in self.rows]
        num_probs = [n if has else 0 for n, has in zip(lens, self.by_ratio, strict=True)]
        draft_probs = self.draft_probs
        if draft_probs is not None:
            wanted = self._spans(num_probs, places)
            draft_probs = draft_probs.rows(wanted) if len(wanted) else None
        return RoundToSample(
            [self.rows[place] for place in places],
            self.logits[self._spans([n + 1 for n in lens], places)],
            draft_probs,
            [self.by_ratio[place] for place in places],
        )

    def _spans(self, lens: Rows[int], places: Rows[int]) -> torch.Tensor:
        """Where what the rows at `places` have lies, each having as many as `lens` says."""
        ends = list(accumulate(lens))
        spans = [i for place in places for i in range(ends[place] - lens[place], ends[place])]
        return torch.tensor(spans, dtype=torch.int64, device=self.logits.device)


def in_groups(
    batch: RoundToSample, is_apart: Rows[bool], sample: Callable[[RoundToSample], VerifiedRows]
) -> VerifiedRows:
    """What `sample` finds, asked for the rows that are apart and for the others."""
    if len(set(is_apart)) < 2:
        return sample(batch)
    num_rows = len(batch.rows)
    found = VerifiedRows([0] * num_rows, [0] * num_rows, [False] * num_rows, [False] * num_rows)
    for wanted in (False, True):
        places = [place for place, apart in enumerate(is_apart) if apart is wanted]
        part = sample(batch.part(places))
        for own, place in enumerate(places):
            found.num_accepted[place] = part.num_accepted[own]
            found.next_tokens[place] = part.next_tokens[own]
            found.has_bad_logits[place] = part.has_bad_logits[own]
            found.has_broken_probs[place] = part.has_broken_probs[own]
    return found
