"""A drafter for a target in the same process."""

from pathlib import Path

from specserve.backends.base import Backend
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.load import (
    DEFAULT_GAMMA,
    DEFAULT_HIDDEN_GAMMA,
    DrafterOptions,
    load_drafter,
    load_features,
    with_gamma,
)
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import Drafter, FeatureSpec
from specserve.drafters.spec import BlockSpec, Eagle3Spec, LocalHeadSpec
from specserve.drafters.warm_up import time_drafts, warm_up
from specserve.drafters.weights import TargetWeights
from specserve.models.transformer import Transformer
from specserve.settings.config import DRAFTER_BITS, NUM_KEPT, SpeculationConfig
from specserve.settings.drafter_source import NGRAM

_TIMED_ROWS = (1, 4, 16)
_TIMED_LEN = 32  # positions: a short row tells what its passes take


def load(
    speculation: SpeculationConfig,
    *,
    target: Path,
    model: Transformer,
    backend: Backend,
    num_context_tokens: int,
    max_positions: int,
    bits: int = DRAFTER_BITS,
) -> Drafter:
    """The configured drafter, sharing what it can with the running target `model`.

    Raises `Unsupported` for a checkpoint that cannot be used here, or not with this target.
    """
    if speculation.drafter == NGRAM:
        return NgramDrafter(gamma=speculation.gamma or DEFAULT_GAMMA)
    options = DrafterOptions(
        dtype=model.embedding.dtype,
        backend=backend,
        num_context_tokens=num_context_tokens,
        max_positions=min(max_positions, positions_of(speculation) or max_positions),
        local_head=Path(speculation.local_head) if speculation.local_head else None,
        gamma=speculation.gamma,
        chains_end=speculation.min_survival is None,
        bits=bits,
    )
    folder = Path(speculation.drafter or "")
    drafter = load_drafter(folder, TargetWeights.of(target, model), options)
    warm_up(drafter, options, size=1, num_kept=NUM_KEPT)
    return drafter


def times_of(
    drafter: Drafter,
    *,
    model: Transformer,
    backend: Backend,
    max_rows: int,
    max_positions: int,
    known: DraftTimes | None = None,
) -> DraftTimes:
    """How long what `load` returned takes for few rows and for many, up to `max_rows`.

    `max_positions`: those that it was made for, if they are few; `known`: by an earlier process.
    """
    most = min(_TIMED_LEN, max_positions)
    options = DrafterOptions(
        dtype=model.embedding.dtype, backend=backend, num_context_tokens=0, max_positions=most
    )
    sizes = [size for size in _TIMED_ROWS if size <= max_rows]
    return time_drafts(drafter, options, sizes=sizes, num_kept=NUM_KEPT, known=known)


def load_feature_spec(
    folder: str, *, target: Path, model: Transformer, backend: Backend
) -> FeatureSpec | None:
    """What the running target `model` has to keep for a drafter that runs elsewhere.

    `folder` as in `SpeculationConfig.drafter`; only the feature projection is loaded. None for a
    drafter that reads token ids alone. Raises `Unsupported` as `load` does.
    """
    if folder == NGRAM:
        return None
    weights = TargetWeights.of(target, model)
    return load_features(Path(folder), weights, dtype=model.embedding.dtype, backend=backend)


def describe(speculation: SpeculationConfig) -> tuple[str, int]:
    """The architecture of the draft processes' drafter, for people, and the tokens of its blocks.

    Reads the folder's configuration alone. Raises `Unsupported` as `load` does.
    """
    if speculation.drafter == NGRAM:
        return NGRAM, speculation.gamma or DEFAULT_GAMMA
    folder = Path(speculation.drafter or "")
    spec = with_gamma(read_draft_spec(folder), speculation.gamma)
    if isinstance(spec, BlockSpec):
        return spec.name, spec.gamma
    if isinstance(spec, Eagle3Spec):
        return "eagle3", spec.gamma
    return "language model", speculation.gamma or DEFAULT_HIDDEN_GAMMA


def positions_of(speculation: SpeculationConfig) -> int | None:
    """How long rows may be that the configured drafter was made for; None: there is no limit.

    Raises `Unsupported` as `load` does.
    """
    if speculation.drafter == NGRAM:
        return None
    spec = read_draft_spec(Path(speculation.drafter or ""))
    return None if isinstance(spec, LocalHeadSpec) else spec.decoder.max_position_embeddings
