"""Operations of few rows captured as CUDA graphs; whatever has no graph is the reference's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.base import BlockDraws, DrawBlocks, VerifiedRows
from specserve.backends.cuda import graphs, noise
from specserve.backends.cuda.block_draws import CapturedDraws
from specserve.backends.cuda.block_passes import CapturedBlockPasses
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.cuda.sampling import captured_sample
from specserve.backends.cuda.verification import verify_captured
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.block_passes import TorchBlockPasses
from specserve.backends.torch.forward import TorchForward
from specserve.drafters.backbone import Backbone
from specserve.drafters.block_passes import BlockPasses
from specserve.drafters.context import torch_context
from specserve.models.forward import Forward
from specserve.models.transformer import Transformer
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.sampling import Sampled
from specserve.sampling.verification.batch import RowToVerify


class CudaGraphBackend(TorchBackend):
    """See `Backend`, and docs/decisions/0024-cuda-graphs.md for what is captured."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        graphs.use()
        noise.register()

    @property
    def num_first_calls(self) -> int:
        return graphs.num_captured()

    def make_forward(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> Forward:
        plain = TorchForward(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            deterministic=deterministic,
            kv_dtype=kv_dtype,
        )
        # Padding to a captured shape changes a sum's order, which `deterministic` fixes.
        return plain if deterministic else CapturedForward(model, plain)

    def step_edges(self, *, deterministic: bool) -> Sequence[int]:
        return () if deterministic else graphs.BUCKETS

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        if batch.edits is None and batch.random_rows is not None and batch.greedy_rows is None:
            winners = captured_sample(logits, batch)
            if winners is not None:
                return Sampled(winners)
        return super().sample(logits, batch)

    def verify(
        self, logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
    ) -> VerifiedRows:
        found = verify_captured(logits, rows, draft_probs)
        return super().verify(logits, rows, draft_probs) if found is None else found

    def block_passes(self, backbone: Backbone, *, num_tokens: int) -> BlockPasses:
        context = torch_context(
            backbone.spec.decoder, num_tokens, dtype=backbone.embedding.dtype, device=self.device
        )
        return CapturedBlockPasses(backbone, TorchBlockPasses(backbone, context))

    def block_draws(self, draw: DrawBlocks, vocab_size: int) -> BlockDraws:
        return CapturedDraws(draw, vocab_size, self.device)

    def forget(self) -> None:
        graphs.forget()
