"""Blocks for rows that nothing was pushed for, drafted on the target's own device.

From the row's own text (NGRAM), or by the drafter beside the target (LOCAL_DRAFT). That one's
contexts catch up only when it is asked, so rounds that need no block from it cost it nothing. What
its blocks were drawn from goes to the draft process, which can then foresee their outcomes at once.
"""

from collections.abc import Collection
from collections.abc import Sequence as Rows

import msgspec
import numpy as np
import torch

from specserve.drafters.protocol import StoppingThreshold
from specserve.sampling.draft_probs import DraftProbs
from specserve.transport.link.messages import DraftTopK
from specserve.types import Speculation
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.drafting import CircuitBreaker, ColocatedDraft, RowToDraft
from target_node.speculation.miss_policy import Miss

NUM_SCORED = 256  # tokens of a slot that may become candidates: sampling needs more than that
_NO_CONFIDENCES = np.empty(0, dtype=np.float32)


class LocalDrafts:
    """This round's blocks by row."""

    def __init__(self, drafts: dict[Miss, ColocatedDraft], device: torch.device) -> None:
        """`drafts`: who drafts for NGRAM and LOCAL_DRAFT, as far as they are to be had."""
        self.kinds = frozenset(drafts)
        self._drafts = drafts
        self._device = device
        self._breakers = {miss: CircuitBreaker() for miss in drafts}
        self._kind_of: dict[Sequence, Miss] = {}

    def clear(self) -> None:
        """A new round begins."""
        self._kind_of.clear()

    @property
    def drafted(self) -> Collection[Sequence]:
        """Rows that have a block from here."""
        return self._kind_of.keys()

    def draft(
        self, miss: Miss, rows: Rows[RowToDraft], threshold: StoppingThreshold | None = None
    ) -> dict[Sequence, Speculation]:
        """One block a row that can have one; `threshold`: where chains end."""
        draft = self._drafts[miss]
        num_scored = NUM_SCORED if miss is Miss.LOCAL_DRAFT else 0
        ask = self._breakers[miss].ask
        found = dict(ask(lambda: draft.speculate(rows, num_scored=num_scored, threshold=threshold)))
        self._kind_of |= dict.fromkeys(found, miss)
        if num_scored:
            # As of a pushed block, the last token stays behind: it foretells what follows.
            found = {
                sequence: msgspec.structs.replace(
                    each, token_ids=each.token_ids[: max(1, len(each.token_ids) - 1)]
                )
                for sequence, each in found.items()
            }
        return found

    def draft_probs(self, row: Row) -> DraftProbs:
        """Of the row's drafted tokens, which are from here."""
        assert row.speculation is not None
        draft = self._drafts[self._kind_of[row.sequence]]
        draft_probs = draft.draft_probs([(row.speculation.place, row.verify_len)])
        if draft_probs is not None:
            return draft_probs
        drafted = torch.tensor(row.drafted, dtype=torch.int64, device=self._device)
        return DraftProbs.certain(drafted)

    def draft_top_k(self, row: Row, *, on_device: bool) -> DraftTopK | None:
        """What may stand after each prefix of the row's drafted tokens, if that is known.

        `on_device`: slots stay there.
        """
        kind = self._kind_of.get(row.sequence)
        if kind is not Miss.LOCAL_DRAFT or row.speculation is None or not row.verify_len:
            return None
        scores = self._drafts[kind].scores(row.sequence, row.verify_len + 1)
        if scores is None:
            return None
        is_padding = scores.scores == -torch.inf
        ids = scores.ids.masked_fill(is_padding, 0).to(torch.int32)
        confidences = row.speculation.confidences
        return DraftTopK(
            confidences=_NO_CONFIDENCES
            if confidences is None
            else np.nan_to_num(
                # Whoever gets a frame with a single one that is none drops all of it.
                np.array(confidences[: row.verify_len], dtype=np.float32)
            ).clip(0.0, 1.0),
            slot_ids=ids if on_device else ids.cpu().numpy(),
            slot_scores=scores.scores if on_device else scores.scores.cpu().numpy(),
        )

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        for draft in self._drafts.values():
            draft.forget(sequence)
