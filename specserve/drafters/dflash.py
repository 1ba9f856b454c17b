"""DFlash: a block drafter without heads of its own, in either layout, of any supported dialect.

Its slots do not depend on each other, so all tokens of a block are drawn at once, unless a DeLS
local head is added.
"""

from specserve.drafters.backbone import load_backbone
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.draft_vocabulary import draft_vocabulary
from specserve.drafters.serial_head import SerialHead
from specserve.drafters.spec import BlockSpec
from specserve.drafters.weights import DraftWeights
from specserve.errors import Unsupported


def load_dflash(
    weights: DraftWeights,
    spec: BlockSpec,
    *,
    num_context_tokens: int,
    max_positions: int,
    head: SerialHead | None = None,
) -> BlockDrafter:
    """The drafter of a checked checkpoint, with a local head if one is given."""
    if head is not None and spec.reduces_vocab:
        raise Unsupported("local head: the drafter's vocabulary is only a part of the target's")
    backbone = load_backbone(weights, spec, max_positions + spec.block_size)
    return BlockDrafter(
        backbone,
        backend=weights.backend,
        num_context_tokens=num_context_tokens,
        head=head,
        target_ids=draft_vocabulary(weights, spec.decoder.vocab_size),
    )
