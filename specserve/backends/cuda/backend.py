"""Operations of few rows captured as CUDA graphs; whatever has no graph is the reference's.

Attention, norms and rotation are flashinfer's where it is installed and has kernels for the model,
and torch's else.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.base import BlockDraws, DrawBlocks, VerifiedRows
from specserve.backends.cuda import graphs, noise
from specserve.backends.cuda.block_draws import CapturedDraws
from specserve.backends.cuda.block_passes import CapturedBlockPasses, PassAttention
from specserve.backends.cuda.chain_passes import CapturedChainPasses
from specserve.backends.cuda.feature_chains import CapturedFeatureChains
from specserve.backends.cuda.flash import Heads, Library
from specserve.backends.cuda.flash_attention import FlashAttention, FlashGraphs
from specserve.backends.cuda.flash_blocks import SPARE_PAGES, FlashBlockGraphs
from specserve.backends.cuda.flash_choice import FlashChoice
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.cuda.fused_layers import FusedTransformer
from specserve.backends.cuda.fused_trial import LayerSizes
from specserve.backends.cuda.padded_attention import PaddedGraphs
from specserve.backends.cuda.paged_chains import PagedAttention
from specserve.backends.cuda.verification import CapturedVerification
from specserve.backends.torch.attention import TorchAttention
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.block_passes import TorchBlockPasses, score_scale
from specserve.backends.torch.forward import TorchForward
from specserve.drafters.backbone import Backbone
from specserve.drafters.block_passes import BlockPasses
from specserve.drafters.chain_passes import ChainPasses
from specserve.drafters.context import BLOCK_SIZE, num_pages, torch_context
from specserve.drafters.eagle3 import Eagle3Decoder
from specserve.drafters.feature_chains import FeatureChains
from specserve.models.config import ModelSpec
from specserve.models.forward import Forward
from specserve.models.transformer import Transformer
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.verification.batch import RowToVerify


class CudaGraphBackend(TorchBackend):
    """See `Backend`, and docs/decisions/0024-cuda-graphs.md for what is captured."""

    name = "cuda"

    def __init__(self, device: torch.device, library: Library | None = None) -> None:
        """`library`: flashinfer, or what stands in for it; None: the installed one, if any."""
        super().__init__(device)
        graphs.use()
        noise.register()
        self._flash = FlashChoice(device, library)
        self.verification = CapturedVerification()

    @property
    def attention(self) -> str:
        """Whose it is and why, in words."""
        return self._flash.description

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
        dtype, dim = model.embedding.dtype, model.config.head_dim
        heads = Heads(
            num_heads=len(model.heads.queries),
            num_kv_heads=len(model.heads.kv),
            head_dim=dim,
            page_size=block_size,
            dtype=dtype,
            scale=dim**-0.5,
        )
        # Padding to a captured shape changes a sum's order, which `deterministic` fixes.
        flash = None
        if not deterministic:
            num_slots, is_alone = (num_blocks + 1) * block_size, model.parallel.size == 1
            flash = self._flash.of(heads, kv_dtype or dtype, num_slots, may_fail=is_alone)
            model = self._fused(model)
        plain = TorchForward(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            deterministic=deterministic,
            kv_dtype=kv_dtype,
            num_spare_blocks=0 if flash is None else 1,
        )
        if deterministic:
            return plain
        if flash is None:
            return CapturedForward(model, plain)
        plain.attend_by(FlashAttention(flash, plain.cache, heads))
        return CapturedForward(model, plain, attention=FlashGraphs(flash, plain.cache, heads))

    def _fused(self, model: Transformer) -> Transformer:
        """The same, with fused norms and rotation where there are any."""
        sizes = LayerSizes(
            hidden_size=model.config.hidden_size,
            num_heads=len(model.heads.queries),
            num_kv_heads=len(model.heads.kv),
            head_dim=model.config.head_dim,
            dtype=model.embedding.dtype,
        )
        ops = self._flash.of_layers(sizes, may_fail=model.parallel.size == 1)
        return model if ops is None else FusedTransformer(model, ops)

    def step_edges(self, *, deterministic: bool) -> Sequence[int]:
        return () if deterministic else graphs.BUCKETS

    def verify(
        self, logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
    ) -> VerifiedRows:
        found = self.verification(logits, rows, draft_probs)
        return super().verify(logits, rows, draft_probs) if found is None else found

    def chain_passes(self, model: Transformer, *, num_tokens: int, longest: int) -> ChainPasses:
        attention = self._paged(model.config, model.embedding.dtype, num_tokens)
        return CapturedChainPasses(model, attention)

    def feature_chains(self, decoder: Eagle3Decoder, *, num_tokens: int) -> FeatureChains:
        attention = self._paged(decoder.spec.decoder, decoder.embedding.dtype, num_tokens)
        return CapturedFeatureChains(decoder, attention)

    def _paged(self, spec: ModelSpec, dtype: torch.dtype, num_tokens: int) -> PagedAttention:
        """Of a drafter whose chains are rows of pages, over new contexts."""
        heads = Heads(
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            page_size=BLOCK_SIZE,
            dtype=dtype,
            scale=spec.head_dim**-0.5,
        )
        num_slots = (num_pages(num_tokens) + 1) * BLOCK_SIZE
        flash = self._flash.of(heads, dtype, num_slots, may_fail=True)
        context = torch_context(
            spec, num_tokens, dtype=dtype, device=self.device, num_spare_pages=1 if flash else 0
        )
        cache = context.cache
        if flash is not None:
            eager = FlashAttention(flash, cache, heads)
            return PagedAttention(context, eager, FlashGraphs(flash, cache, heads))
        eager = TorchAttention(cache, num_heads=spec.num_heads, deterministic=False)
        return PagedAttention(context, eager, PaddedGraphs(cache, num_heads=spec.num_heads))

    def block_passes(self, backbone: Backbone, *, num_tokens: int) -> BlockPasses:
        decoder, dtype = backbone.spec.decoder, backbone.embedding.dtype
        heads = Heads(
            num_heads=decoder.num_heads,
            num_kv_heads=decoder.num_kv_heads,
            head_dim=decoder.head_dim,
            page_size=BLOCK_SIZE,
            dtype=dtype,
            scale=score_scale(backbone.spec),
        )
        num_slots = (num_pages(num_tokens) + SPARE_PAGES) * BLOCK_SIZE
        flash = self._flash.of(heads, dtype, num_slots, may_fail=True)
        context = torch_context(
            decoder,
            num_tokens,
            dtype=dtype,
            device=self.device,
            num_spare_pages=SPARE_PAGES if flash else 0,
        )
        plain = TorchBlockPasses(backbone, context)
        if flash is None:
            return CapturedBlockPasses(backbone, plain)
        attention = PassAttention(
            FlashGraphs(flash, context.cache, heads), FlashBlockGraphs(flash, context, heads)
        )
        return CapturedBlockPasses(backbone, plain, attention)

    def block_draws(self, draw: DrawBlocks, vocab_size: int) -> BlockDraws:
        return CapturedDraws(draw, vocab_size, self.device)

    def forget(self) -> None:
        graphs.forget()
