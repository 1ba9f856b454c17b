"""The target without a service: many rows that are fed, read and rolled back, for offline work.

Calibration and measurements of drafters need a target's distributions and features along texts and
along drafted paths, but no scheduling, no admission and no clients. Arithmetic is the service's own
forward pass in its fastest form. Knows no sampling and no drafters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.backends.torch.attention import TorchAttention
from specserve.drafters.context import torch_context
from specserve.drafters.row_layout import flat_positions
from specserve.models.transformer import Transformer


@dataclass(frozen=True)
class Fed:
    """What a forward found at its N tokens, row by row."""

    hidden: Tensor  # [N, H], final
    residuals: Tensor | None  # [N, layers * H], what a drafter's `FeatureSpec` projects


class OfflineTarget:
    """A loaded model and the KV entries of its rows; a row exists from its first token to `free`.

    `layers` are those whose residuals a drafter reads (-1: the embeddings).
    """

    def __init__(
        self, model: Transformer, *, num_tokens: int, layers: tuple[int, ...] = ()
    ) -> None:
        """Room for `num_tokens` positions over all rows, each rounded up to a page."""
        spec = model.config
        self.model = model
        self.layers = layers
        self._context = torch_context(
            spec,
            num_tokens,
            dtype=model.embedding.dtype,
            device=model.embedding.device,
        )
        self._attention = TorchAttention(
            self._context.cache, num_heads=spec.num_heads, deterministic=False
        )

    @property
    def device(self) -> torch.device:
        return self.model.embedding.device

    def length(self, row: int) -> int:
        """Tokens of the row that have been fed."""
        return self._context.rows.length(row)

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], token_ids: Sequence[Sequence[int]]) -> Fed:
        """Append at least one token to each of some distinct rows; `Exhausted` without memory."""
        starts, counts = [self.length(row) for row in rows], [len(ids) for ids in token_ids]
        self._context.rows.append(rows, starts, counts)
        self._attention.plan(self._context.causal_batch(rows, counts))
        flat = torch.tensor([i for ids in token_ids for i in ids], device=self.device)
        positions = flat_positions(starts, counts).to(self.device)
        hidden, tapped = self.model.forward(flat, positions, self._attention, self.layers)
        return Fed(hidden, torch.cat(tapped, dim=1) if tapped else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states [R, H] -> [R, V] float32."""
        logits = self.model.logits(hidden)
        assert logits is not None, "a single rank has the logits"
        return logits

    def truncate(self, row: int, length: int) -> None:
        """Forget what was fed at position `length` and beyond."""
        self._context.rows.truncate(row, length)

    def free(self, row: int) -> None:
        """Forget the row; an unknown one is ignored."""
        self._context.rows.free(row)
