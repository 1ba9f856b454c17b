"""The target's forward pass over flattened tokens. Knows no requests, blocks or sampling."""

from collections.abc import Sequence

import torch

from specserve.models.config import ModelSpec
from specserve.models.dealing import deal
from specserve.models.layers import AttentionRun, DecoderLayer, RMSNorm
from specserve.models.parallel import TensorParallel
from specserve.models.parts import Linear
from specserve.models.rope import RotaryTable

EMBEDDING_TAP = -1


class Transformer:
    """One rank's share of a decoder-only model; made by `specserve.models.loader.load_model`."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: torch.Tensor,
        layers: Sequence[DecoderLayer],
        final_norm: RMSNorm,
        lm_head: Linear,
        rotary: RotaryTable,
        parallel: TensorParallel,
    ) -> None:
        self.config = spec
        self.num_params = spec.num_params
        self.ballast_params = spec.ballast_params
        self.dtype = embedding.dtype  # that it is served in: what weights are rounded to
        self.half_weights = False  # whether some are kept in 16 bits, whatever they compute with
        self.embedding = embedding  # [V, H], whole on every rank
        self.parallel = parallel
        self.heads = parallel.share_heads(spec.num_heads, spec.num_kv_heads)  # this rank's
        self._vocabulary = deal(spec.vocab_size, parallel.size)
        self.layers = tuple(layers)
        self.final_norm = final_norm
        self.lm_head = lm_head  # [N, H] -> this rank's columns of [N, V]
        self.rotary = rotary
        self.num_positions = rotary.num_positions  # positions of a row lie below

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionRun,
        taps: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Hidden states [N, H] after the final norm, and the tapped residuals, each [N, H].

        token_ids, positions [N] int64: the new tokens of all rows, no padding. A tap names a real
        layer, whose raw residual output is wanted, or -1 for the embeddings; results come in the
        order of `taps`. Equal on every rank.
        """
        rotary = self.rotary.at(positions)
        x = self.embedding.index_select(0, token_ids)
        tapped = {EMBEDDING_TAP: x}
        for layer in self.layers:
            x = layer(x, rotary, attention)
            if layer.index in taps:
                tapped[layer.index] = x
        return self.final_norm(x), [tapped[tap] for tap in taps]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Final hidden states [R, H] -> [R, V] float32 on rank 0, None on the other ranks.

        Tokens that only pad the vocabulary have -inf: no distribution that is made of these
        contains them.
        """
        logits = self.parallel.gather(self.lm_head(hidden), self._vocabulary)
        if logits is None:
            return None
        logits = logits.float()
        if self.config.num_known_tokens < self.config.vocab_size:
            # The columns stay, for their number is what drafters, ranks and kernels go by.
            logits[:, self.config.num_known_tokens :] = float("-inf")
        return logits
