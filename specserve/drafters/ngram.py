"""Prompt lookup: what followed the last few tokens when they last occurred in the row.

No weights and no distribution: a proposal is certain. Rows are byte strings of 32-bit ids, which a
substring search scans faster than any index of n-grams could be kept under truncation.
"""

from array import array

import torch

from specserve.drafters.protocol import ContextUpdate, DraftBatch, FeatureSpec, SpeculationBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import DraftSampler

_WIDTH = array("i").itemsize


class NgramDrafter:
    """`Drafter`; a block without a match has length 0 and padding for tokens."""

    holds_pending_tokens = True
    stops_in_time = False

    def __init__(self, *, gamma: int, longest: int = 4, shortest: int = 2) -> None:
        """Matches of `longest` down to `shortest` tokens, the anchor included, are looked for."""
        self.name = "ngram"
        self.gamma = gamma
        self.feature_size = 0
        self.features: FeatureSpec | None = None
        self._match_lens = range(longest, shortest - 1, -1)
        self._rows: dict[int, array[int]] = {}

    def context_len(self, row: int) -> int:
        return len(self._rows.get(row, ()))

    def extend(self, update: ContextUpdate) -> None:
        for row, start in zip(update.rows, update.starts, strict=True):
            if start != self.context_len(row):
                raise ValueError(f"row {row} ends at {self.context_len(row)}, not at {start}")
        token_ids, taken = update.token_ids.tolist(), 0
        for row, count in zip(update.rows, update.counts, strict=True):
            self._rows.setdefault(row, array("i")).extend(token_ids[taken : taken + count])
            taken += count

    def truncate(self, row: int, length: int) -> None:
        if not 0 <= length <= self.context_len(row):
            raise ValueError(f"row {row} has {self.context_len(row)} positions, not {length}")
        if length == 0:
            self.free(row)
        else:
            del self._rows[row][length:]

    def free(self, row: int) -> None:
        self._rows.pop(row, None)

    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        """`sampler` has no say: there is nothing to draw from."""
        device = batch.anchor_ids.device
        proposals: list[list[int]] = []
        for place, (row, anchor_id) in enumerate(
            zip(batch.rows, batch.anchor_ids.tolist(), strict=True)
        ):
            length = None if batch.context_lens is None else batch.context_lens[place]
            gap = batch.gap_ids[place] if batch.gap_ids is not None else ()
            known = self._rows.get(row, array("i"))[:length]
            known.extend(gap)
            known.append(anchor_id)
            proposals.append(self._continuation(known))
        lengths = [len(proposal) for proposal in proposals]
        padded = [proposal or [0] * self.gamma for proposal in proposals]
        token_ids = torch.tensor(padded, dtype=torch.int64, device=device)
        found = torch.tensor(lengths, device=device) > 0
        draft_probs = DraftProbs.certain(token_ids.flatten()).only(
            found.repeat_interleave(self.gamma)
        )
        return SpeculationBatch(token_ids, draft_probs, None, lengths)

    def _continuation(self, known: "array[int]") -> list[int]:
        """gamma tokens, or none; where the text ends inside them, they repeat their own period."""
        text = known.tobytes()
        for match_len in self._match_lens:
            if match_len >= len(known):
                continue
            start = _last_occurrence(text, text[-match_len * _WIDTH :])
            if start >= 0:
                period = len(known) - match_len - start
                follow = start + match_len
                return [known[follow + i % period] for i in range(self.gamma)]
        return []


def _last_occurrence(text: bytes, pattern: bytes) -> int:
    """The last token index at which `pattern` starts, but for the end of `text`; -1: none."""
    end = len(text) - _WIDTH
    while (found := text.rfind(pattern, 0, end)) >= 0:
        if found % _WIDTH == 0:
            return found // _WIDTH
        end = found + len(pattern) - 1
    return -1
