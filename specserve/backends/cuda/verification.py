"""A round's rows sampled and verified by one graph: by itself it is hundreds of small kernels.

Rounds share a graph by their shape (`round_shape`); their logits, draft distributions and one
tensor of packed tables are copied to it, and one tensor is read. See
docs/decisions/0024-cuda-graphs.md.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.base import VerifiedRows
from specserve.backends.cuda.captured_round import CapturedRound, Given
from specserve.backends.cuda.graphs import Capture, CapturedGraphs
from specserve.backends.cuda.round_outcomes import read_outcomes
from specserve.backends.cuda.round_shape import MOST_LOGITS, RoundShape, say_once
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.verification.batch import RowToVerify, by_ratio


class CapturedVerification:
    """See `Backend.verify`, on one device."""

    def __init__(self, capture: Capture | None = None) -> None:
        """`capture`: by default one of CUDA graphs, from the first round on."""
        self._capture = capture
        # Of any round's logits, which all graphs read: they run one after another.
        self._logits: Tensor | None = None

    @functools.cached_property
    def graphs(self) -> CapturedGraphs[RoundShape, CapturedRound]:
        return CapturedGraphs(self._make, self._capture)

    def __call__(
        self, logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
    ) -> VerifiedRows | None:
        """None where rounds of their shape are not captured, of which the log has the reason.

        ValueError for a round or branch too large for its key, and where there are not as many
        logits or draft distributions as rows need.
        """
        are_tested = by_ratio(rows)
        _check_counts(logits, rows, are_tested, draft_probs)
        shape = RoundShape.of(logits, rows, are_tested, draft_probs)
        obstacle = shape.why_not()
        if obstacle:
            say_once(obstacle)
            return None
        given = Given(logits, rows, are_tested, draft_probs)
        made = self.graphs.run(shape, lambda each: each.fill(given))
        return None if made is None else read_outcomes(made.found, shape, rows, are_tested)

    def _make(self, shape: RoundShape) -> CapturedRound:
        if self._logits is None:
            self._logits = torch.zeros(MOST_LOGITS, device=shape.device)
        memory = self._logits[: shape.num_logits * shape.vocab_size]
        return CapturedRound(shape, memory.view(shape.num_logits, shape.vocab_size))


def _check_counts(
    logits: Tensor,
    rows: Sequence[RowToVerify],
    are_tested: Sequence[bool],
    draft_probs: DraftProbs | None,
) -> None:
    sizes = [len(row.drafted) for row in rows]
    num_probs = sum(n for n, is_tested in zip(sizes, are_tested, strict=True) if is_tested)
    if draft_probs is None and num_probs:
        raise ValueError("drafted tokens under the ratio test, but no draft distribution")
    if draft_probs is not None and len(draft_probs.ids) != num_probs:
        raise ValueError(f"{len(draft_probs.ids)} distributions for {num_probs} drafted tokens")
    if len(logits) != sum(sizes) + len(rows):
        raise ValueError(f"{len(logits)} rows of logits, {sum(sizes) + len(rows)} are verified")
