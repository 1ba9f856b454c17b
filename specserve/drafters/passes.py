"""How this machine makes a drafter's passes: compiled where that can be had, or by torch."""

from specserve.backends.cuda import cuda_graphs
from specserve.drafters.backbone import Backbone
from specserve.drafters.block_passes import BlockPasses, TorchBlockPasses
from specserve.drafters.chain_passes import ChainPasses, TorchPasses
from specserve.drafters.compiled_passes import CompiledPasses
from specserve.drafters.context import torch_context
from specserve.drafters.recorded_passes import RecordedBlockPasses
from specserve.models.config import ModelSpec
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer

_LONGEST_CHAIN = 16  # tokens at least, since calibrated chains are longer than others


def chain_passes(model: Transformer, *, num_tokens: int, longest: int) -> ChainPasses:
    """Over new contexts of `num_tokens`, over all rows, for chains of at most `longest`."""
    if CompiledPasses.suit(model):
        longest = max(longest, _LONGEST_CHAIN)
        return CompiledPasses(model, num_tokens=num_tokens, longest=longest)
    context = torch_context(
        **_shape(model.config),
        num_tokens=num_tokens,
        dtype=model.embedding.dtype,
        device=model.embedding.device,
    )
    return TorchPasses(model, context)


def block_passes(backbone: Backbone, *, num_tokens: int) -> BlockPasses:
    """Over new contexts of `num_tokens`, over all rows."""
    spec = backbone.spec
    model = _as_transformer(backbone)
    if model is not None and CompiledPasses.suit(model):
        # A gap is what was verified of the block in flight, and the token that followed it.
        longest = 2 * spec.block_size + 1
        return CompiledPasses(model, num_tokens=num_tokens, longest=longest)
    context = torch_context(
        **_shape(spec.decoder),
        num_tokens=num_tokens,
        dtype=backbone.embedding.dtype,
        device=backbone.embedding.device,
    )
    plain = TorchBlockPasses(backbone, context)
    if cuda_graphs.are_used(context.cache.device):
        return RecordedBlockPasses(backbone, plain)
    return plain


def _shape(spec: ModelSpec) -> dict[str, int]:
    return {
        "num_layers": spec.num_layers,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
    }


def _as_transformer(backbone: Backbone) -> Transformer | None:
    """The same layers as a target has them; None where they are others."""
    spec, layers = backbone.spec, backbone.decoder_layers()
    if layers is None or spec.embedding_scale != 1:
        return None
    return Transformer(
        spec.decoder,
        embedding=backbone.embedding,
        layers=layers,
        final_norm=backbone.final_norm,
        lm_head=backbone.lm_head,
        rotary=backbone.rotary,
        parallel=TensorParallel(),
    )
