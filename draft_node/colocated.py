"""A drafter for a target in the same process: what `target_node` starts by this module's name."""

from pathlib import Path

from draft_node.drafters.load import DrafterOptions, load_drafter
from draft_node.drafters.ngram import NgramDrafter
from draft_node.drafters.weights import TargetWeights
from specserve.config import SpeculationConfig
from specserve.drafter_source import NGRAM
from specserve.drafting import Drafter
from specserve.model.transformer import Transformer

_DEFAULT_GAMMA = 5  # of drafters whose checkpoint names none


def load(
    speculation: SpeculationConfig,
    *,
    target: Path,
    model: Transformer,
    num_context_tokens: int,
    max_positions: int,
) -> Drafter:
    """The configured drafter, sharing what it can with the running target `model`.

    Raises `Unsupported` for a checkpoint that cannot be used here, or not with this target.
    """
    gamma = speculation.gamma or _DEFAULT_GAMMA
    if speculation.drafter == NGRAM:
        return NgramDrafter(gamma=gamma)
    options = DrafterOptions(
        dtype=model.embedding.dtype,
        device=model.embedding.device,
        num_context_tokens=num_context_tokens,
        max_positions=max_positions,
        local_head=Path(speculation.local_head) if speculation.local_head else None,
        gamma=gamma,
    )
    folder = Path(speculation.drafter or "")
    return load_drafter(folder, TargetWeights.of(target, model), options)
