"""Batch in, logits out: the model and its KV cache on one rank.

With feature caches (rank 0, when drafters read features) a forward also keeps those.

Knows neither requests nor sampling. The same object runs on every rank; rank 0 gets logits.
"""

import torch

from specserve.backends.base import Backend
from specserve.drafters.protocol import FeatureSpec
from specserve.models.forward import Cache
from specserve.models.transformer import Transformer
from target_node.batch import ForwardBatch
from target_node.planning.step_table import StepTable
from target_node.speculation.feature_cache import FeatureCache


class Runner:
    """Runs forwards of one rank's share of the target."""

    def __init__(
        self,
        model: Transformer,
        *,
        backend: Backend,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """`kv_dtype`: see `Backend.make_forward`."""
        self.model = model
        self.features: list[FeatureCache] = []  # one for each drafter that reads any
        # What forwards take, as far as it was measured.
        self.steps = StepTable(backend.step_edges(deterministic=deterministic))
        self.backend = backend
        self.passes = backend.make_forward(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            deterministic=deterministic,
            kv_dtype=kv_dtype,
        )

    @property
    def cache(self) -> Cache:
        return self.passes.cache

    @property
    def num_computed(self) -> int:
        """Tokens of the last forward, with those that padded it."""
        return self.passes.num_computed

    def keep_features(self, spec: FeatureSpec) -> FeatureCache:
        """From now on forwards keep what `spec` asks for."""
        embedding = self.model.embedding
        nothing = embedding.new_zeros(1, len(spec.layers) * embedding.shape[1])
        features = FeatureCache(
            spec,
            feature_size=spec.project(nothing).shape[1],
            num_blocks=self.cache.num_blocks,
            block_size=self.cache.block_size,
            dtype=embedding.dtype,
            device=embedding.device,
            is_deferred=not self.backend.is_asynchronous,
        )
        self.features.append(features)
        return features

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Logits [R, V] float32 of the rows that want them; None elsewhere than on rank 0."""
        device = self.model.embedding.device
        self.cache.zero_blocks(batch.fresh_blocks)
        self.passes.plan(batch.attention)
        taps = tuple({layer for features in self.features for layer in features.layers})
        # Not pinned: a copy has left this memory when the call returns, and waits for no kernel.
        token_ids = torch.from_numpy(batch.token_ids).to(device, non_blocking=True)
        hidden, residuals = self.passes.run(token_ids, taps)
        tapped = dict(zip(taps, residuals, strict=True))
        for features in self.features:
            features.write(batch.attention, [tapped[layer] for layer in features.layers])
        if not len(batch.logits_index):
            return None
        wanted = torch.from_numpy(batch.logits_index).to(device, non_blocking=True)
        rows = hidden if len(wanted) == len(hidden) else hidden.index_select(0, wanted)
        return self.model.logits(rows)
