"""The reference backend: what every other one hands operations to, and is tested against."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from specserve.backends.base import BlockDraws, DrawBlocks, VerifiedRows
from specserve.backends.torch.block_passes import TorchBlockPasses
from specserve.backends.torch.chain_passes import TorchChainPasses
from specserve.backends.torch.feature_chains import TorchFeatureChains
from specserve.backends.torch.forward import TorchForward
from specserve.backends.torch.parts import TorchParts
from specserve.backends.torch.verification import verified
from specserve.drafters.backbone import Backbone
from specserve.drafters.block_passes import BlockPasses
from specserve.drafters.chain_passes import ChainPasses
from specserve.drafters.context import torch_context
from specserve.drafters.eagle3 import Eagle3Decoder
from specserve.drafters.feature_chains import FeatureChains
from specserve.drafters.protocol import SpeculationBatch
from specserve.models.forward import Forward
from specserve.models.parts import LayerParts
from specserve.models.transformer import Transformer
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import DraftSampling
from specserve.sampling.verification.batch import RowToVerify

_LOG = logging.getLogger(__name__)


class TorchBackend:
    """torch's own operations, on any device; see `Backend`."""

    name = "torch"
    num_first_calls = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.description = f"{self.name} on {device}"
        is_gpu = device.type == "cuda"
        self.is_asynchronous = is_gpu
        self.turning_point = 256.0 if is_gpu else 26.0
        self.neighbour_factor = 1.0 if is_gpu else 1.25
        of_device = (ProfilerActivity.CUDA,) if is_gpu else ()
        self.profiler_activities = (ProfilerActivity.CPU, *of_device)

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        return free

    def target_parts(
        self, dtype: torch.dtype, *, deterministic: bool, is_stored_in_16_bits: bool
    ) -> LayerParts:
        computed = dtype
        if self.device.type == "cpu" and dtype in (torch.bfloat16, torch.float16):
            # torch's arithmetic of 16 bits takes several times as long.
            _LOG.warning("%s: rounded, and kept in float32: no products of 16 bits here", dtype)
            computed = torch.float32
        return TorchParts(
            dtype=computed, device=self.device, deterministic=deterministic, rounded_to=dtype
        )

    def layer_parts(self, dtype: torch.dtype, *, input_bits: int = 32) -> LayerParts:
        return TorchParts(dtype=dtype, device=self.device, deterministic=False)

    def make_forward(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> Forward:
        return TorchForward(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            deterministic=deterministic,
            kv_dtype=kv_dtype,
        )

    def step_edges(self, *, deterministic: bool) -> Sequence[int]:
        return ()

    def verify(
        self, logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
    ) -> VerifiedRows:
        return verified(logits, rows, draft_probs)

    def chain_passes(self, model: Transformer, *, num_tokens: int, longest: int) -> ChainPasses:
        context = torch_context(
            model.config, num_tokens, dtype=model.embedding.dtype, device=self.device
        )
        return TorchChainPasses(model, context)

    def feature_chains(self, decoder: Eagle3Decoder, *, num_tokens: int) -> FeatureChains:
        context = torch_context(
            decoder.spec.decoder, num_tokens, dtype=decoder.embedding.dtype, device=self.device
        )
        return TorchFeatureChains(decoder, context)

    def block_passes(self, backbone: Backbone, *, num_tokens: int) -> BlockPasses:
        context = torch_context(
            backbone.spec.decoder, num_tokens, dtype=backbone.embedding.dtype, device=self.device
        )
        return TorchBlockPasses(backbone, context)

    def block_draws(self, draw: DrawBlocks, vocab_size: int) -> BlockDraws:
        return _Draws(draw)

    def forget(self) -> None:
        """Nothing is kept."""


class _Draws:
    def __init__(self, draw: DrawBlocks) -> None:
        self._draw = draw

    def draw(
        self, hidden: Tensor, anchor_ids: Tensor, sampling: DraftSampling, *, keep_logits: bool
    ) -> SpeculationBatch:
        return self._draw(hidden, anchor_ids, sampling)
