"""DSpark: a block drafter with a Markov head and a confidence head, of any supported dialect."""

from specserve.drafters import confidence_head
from specserve.drafters.backbone import backbone_tensors, load_backbone
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.confidence_head import load_confidence_head
from specserve.drafters.markov_head import load_markov_head, markov_tensors
from specserve.drafters.spec import BlockSpec
from specserve.drafters.weights import (
    EMBEDDING,
    LM_HEAD,
    TABLE_DTYPES,
    DraftWeights,
    draft_vocabulary,
    table_shapes,
)


def block_tensors(spec: BlockSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint that `spec` describes."""
    decoder = spec.decoder
    shapes = backbone_tensors(spec)
    rank = 0
    if spec.markov is not None:
        rank = spec.markov.rank
        shapes |= markov_tensors(
            spec.markov, decoder.hidden_size, decoder.vocab_size, spec.draft_vocab_size
        )
    if spec.confidence is not None:
        width = decoder.hidden_size + (rank if spec.confidence.with_markov else 0)
        shapes[confidence_head.WEIGHT] = (1, width)
        shapes[confidence_head.BIAS] = (1,)
    return shapes


def check_block_tensors(weights: DraftWeights, spec: BlockSpec) -> None:
    """Raise `Unsupported` unless the checkpoint holds exactly what `spec` describes."""
    tables = table_shapes(spec.draft_vocab_size, spec.decoder.vocab_size)
    optional = [confidence_head.BIAS]
    if weights.target is not None:
        optional += [EMBEDDING, LM_HEAD] if spec.shares_head else [EMBEDDING]
    if not spec.reduces_vocab:
        optional += tables
    weights.checkpoint.check(block_tensors(spec) | tables, optional, TABLE_DTYPES)


def load_dspark(
    weights: DraftWeights, spec: BlockSpec, *, num_context_tokens: int, max_positions: int
) -> BlockDrafter:
    """The drafter of a checked checkpoint with one of the two heads, or both."""
    backbone = load_backbone(weights, spec, max_positions + spec.block_size)
    return BlockDrafter(
        backbone,
        backend=weights.backend,
        num_context_tokens=num_context_tokens,
        head=load_markov_head(weights, spec.markov) if spec.markov else None,
        confidence_head=load_confidence_head(weights, spec.confidence) if spec.confidence else None,
        target_ids=draft_vocabulary(weights, spec.decoder.vocab_size),
    )
