"""From a folder to a `Drafter`: reads the config, checks every tensor, checks it fits the target.

No code that comes with a checkpoint is ever executed, and no pickle is read.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from specserve.backends.base import Backend
from specserve.drafters.attach_calibration import attach, confidence_head
from specserve.drafters.backbone import load_backbone, load_projector
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.dspark import check_block_tensors, load_dspark
from specserve.drafters.eagle3_weights import (
    as_stored,
    check_eagle3_tensors,
    eagle3_projector,
    load_eagle3,
    with_usual_layers,
)
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.language_model_weights import (
    check_language_model,
    load_language_model,
)
from specserve.drafters.local_head import LocalHeadOptions, load_local_head
from specserve.drafters.protocol import Drafter, FeatureSpec
from specserve.drafters.serial_head import SerialHead
from specserve.drafters.spec import (
    DEEPSPEC,
    BlockSpec,
    DraftSpec,
    Eagle3Spec,
    LanguageModelSpec,
    LocalHeadSpec,
)
from specserve.drafters.stored_calibration import find_calibration
from specserve.drafters.weights import (
    IGNORED,
    DraftWeights,
    TargetWeights,
    draft_vocabulary,
)
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.model_files import refuse_pickles

_LOG = logging.getLogger(__name__)
DEFAULT_GAMMA = 5  # of a language model, whose checkpoint names none
# Of one with confidences beside its target: chains end where another token does not pay.
DEFAULT_MOST_GAMMA = 8
# Of one without: what its chains bring and take is measured (`target_node.planning.acceptance`).
DEFAULT_MOST_BLIND_GAMMA = 16
# The same in a process of its own, where the last token is not verified: its distribution foretells
# what follows. So many usually, with confidences at most, and at most.
USUAL_HIDDEN_TOKENS, MOST_HIDDEN_TOKENS = 1 + DEFAULT_GAMMA, 1 + DEFAULT_MOST_GAMMA
DEFAULT_HIDDEN_GAMMA = 1 + DEFAULT_MOST_BLIND_GAMMA
_MAX_BLOCK_SIZE = 64  # as many as `speculation.gamma` may ask for
_MAX_LAYERS = 128  # of a drafter: the deepest published ones have six


@dataclass(frozen=True)
class DrafterOptions:
    """Where a drafter runs and how much it may remember."""

    dtype: torch.dtype
    backend: Backend
    num_context_tokens: int  # over all rows
    max_positions: int  # of one row, prompt and answer
    local_head: Path | None = None
    fusion: LocalHeadOptions | None = None  # of that head; None: as its checkpoint says
    # Cuts blocks. A language model's are as long, or of `DEFAULT_GAMMA` tokens; where chains are to
    # end where they do not pay, of up to `DEFAULT_MOST_GAMMA` if it is calibrated, and of up to
    # `DEFAULT_MOST_BLIND_GAMMA` if not.
    gamma: int | None = None
    chains_end: bool = False
    calibrated: bool = True  # use the calibration beside the drafter, if it was made for both
    bits: int = 32  # of weights and inputs at least, on a CPU: 8, 16 or 32

    @property
    def device(self) -> torch.device:
        return self.backend.device


def load_drafter(folder: Path, target: TargetWeights | None, options: DrafterOptions) -> Drafter:
    """The drafter in `folder`, for `target`; None only for checkpoints that need nothing of it.

    Raises `Unsupported` for a dialect that is not implemented, a malformed checkpoint, or one that
    was made for another target.
    """
    drafter = _load_drafter(folder, target, options)
    if options.calibrated and target is not None:
        folders = [folder] if options.local_head is None else [folder, options.local_head]
        calibration = find_calibration(folders, target.folder)
        if calibration is None and confidence_head(drafter) is not None:
            _LOG.info("%s: its confidences are not calibrated; `specserve calibrate` does", folder)
        if calibration is not None:
            try:
                attach(drafter, calibration, options.device)
                _lengthen(drafter, options)
            except Unsupported as error:  # drafts are correct without, only less well scheduled
                _LOG.warning("%s: calibration not used: %s", folders[-1], error)
    return drafter


def _lengthen(drafter: Drafter, options: DrafterOptions) -> None:
    """With confidences a chain knows when to end."""
    is_chain = isinstance(drafter, LanguageModelDrafter)
    if is_chain and options.chains_end and options.gamma is None:
        drafter.gamma = DEFAULT_MOST_GAMMA


def _load_drafter(folder: Path, target: TargetWeights | None, options: DrafterOptions) -> Drafter:
    spec = with_gamma(_read_bounded(folder), options.gamma)
    if isinstance(spec, LocalHeadSpec):
        raise Unsupported(f"{folder}: a local head drafts nothing alone; add it to a DFlash")
    if isinstance(spec, Eagle3Spec):
        spec = with_usual_layers(folder, spec, None if target is None else target.spec)
    if target is not None:
        _check_fits(folder, spec, target, options.max_positions)
    if isinstance(spec, LanguageModelSpec):
        _refuse_local_head(options)
        return _language_model(folder, spec, target, options)
    for warning in spec.warnings:
        _LOG.warning(warning)
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        weights = DraftWeights(
            checkpoint,
            dtype=options.dtype,
            backend=options.backend,
            target=target,
            bits=options.bits,
        )
        spec = _checked(weights, spec)
        sizes = {
            "num_context_tokens": options.num_context_tokens,
            "max_positions": options.max_positions,
        }
        if isinstance(spec, Eagle3Spec):
            _refuse_local_head(options)
            return load_eagle3(weights, spec, **sizes)
        if spec.markov is not None or spec.confidence is not None:
            _refuse_local_head(options)
            return load_dspark(weights, spec, **sizes)
        known = draft_vocabulary(weights, spec.decoder.vocab_size)
        return load_dflash(weights, spec, **sizes, head=_local_head(options, target, known))


def load_features(
    folder: Path, target: TargetWeights, *, dtype: torch.dtype, backend: Backend
) -> FeatureSpec | None:
    """What `target` has to keep for the drafter in `folder`, without the rest of its weights.

    Refuses what `load_drafter` refuses.
    """
    spec = _read_bounded(folder)
    if isinstance(spec, LocalHeadSpec):
        return None
    if isinstance(spec, LanguageModelSpec):
        _check_fits(folder, spec, target, max_positions=0)
        with Checkpoint(folder) as checkpoint:
            check_language_model(checkpoint, spec)
            weights = DraftWeights(checkpoint, dtype=dtype, backend=backend, target=target)
            draft_vocabulary(weights, spec.decoder.vocab_size)
        return None
    if isinstance(spec, Eagle3Spec):
        spec = with_usual_layers(folder, spec, target.spec)
    _check_fits(folder, spec, target, max_positions=0)
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        weights = DraftWeights(checkpoint, dtype=dtype, backend=backend, target=target)
        spec = _checked(weights, spec)
        draft_vocabulary(weights, spec.decoder.vocab_size)
        if isinstance(spec, Eagle3Spec):
            return FeatureSpec(spec.feature_layers, eagle3_projector(weights, spec))
        projector = load_projector(weights, spec.decoder.rms_norm_eps)
        return FeatureSpec(spec.feature_layers, projector)


def with_gamma(spec: DraftSpec, gamma: int | None) -> DraftSpec:
    """`spec` with blocks of at most `gamma` tokens, where it says how long they are."""
    if gamma is None:
        return spec
    if isinstance(spec, BlockSpec):
        return replace(spec, block_size=spec.block_size - max(0, spec.gamma - gamma))
    if isinstance(spec, Eagle3Spec):
        return replace(spec, gamma=min(gamma, spec.longest))
    return spec


def _read_bounded(folder: Path) -> DraftSpec:
    """The spec in `folder`, refused where drafting one of its blocks would fill the memory."""
    refuse_pickles(folder)
    spec = read_draft_spec(folder)
    field, length = "block_size", 0
    if isinstance(spec, BlockSpec):
        length = spec.block_size
    elif isinstance(spec, Eagle3Spec):
        field = "ttt_length" if spec.dialect == DEEPSPEC else "speculative_tokens"
        length = spec.gamma
    if length > _MAX_BLOCK_SIZE:
        raise Unsupported(f"{folder}: {field}: {length}, the limit is {_MAX_BLOCK_SIZE}")
    # Before anything is made for each of them.
    if isinstance(spec, BlockSpec | Eagle3Spec) and spec.decoder.num_layers > _MAX_LAYERS:
        num_layers = spec.decoder.num_layers
        raise Unsupported(f"{folder}: num_hidden_layers: {num_layers}, the limit is {_MAX_LAYERS}")
    return spec


def _checked(weights: DraftWeights, spec: BlockSpec | Eagle3Spec) -> BlockSpec | Eagle3Spec:
    """`spec` completed by what only tensors tell, once they are what it asks for."""
    checkpoint = weights.checkpoint
    for name in IGNORED:
        checkpoint.ignore(name)
    if isinstance(spec, Eagle3Spec):
        spec = as_stored(spec, checkpoint)
        check_eagle3_tensors(weights, spec)
        return spec
    _refuse_foreign_tensors(checkpoint)
    spec = _as_stored(spec, checkpoint)
    check_block_tensors(weights, spec)
    return spec


def _as_stored(spec: BlockSpec, checkpoint: Checkpoint) -> BlockSpec:
    """Query and key norms are not in any config: the tensors tell."""
    if spec.gemma4 is not None:
        return spec
    qk_norm = "layers.0.self_attn.q_norm.weight" in checkpoint
    return replace(spec, decoder=replace(spec.decoder, qk_norm=qk_norm))


def _check_fits(
    folder: Path,
    spec: BlockSpec | Eagle3Spec | LanguageModelSpec,
    target: TargetWeights,
    max_positions: int,
) -> None:
    ours, theirs = spec.decoder, target.spec
    if ours.vocab_size != theirs.vocab_size:
        raise Unsupported(
            f"{folder}: vocab_size: {ours.vocab_size}, the target has {theirs.vocab_size}; a "
            "drafter drafts for the model it was made for alone, which --target names"
        )
    if isinstance(spec, LanguageModelSpec):
        if not spec.embeddings_stored and ours.hidden_size != theirs.hidden_size:
            problem = f"the target, whose embeddings it reads, has {theirs.hidden_size}"
            raise Unsupported(f"{folder}: hidden_size: {ours.hidden_size}, {problem}")
        if ours.max_position_embeddings < max_positions:
            raise Unsupported(
                f"{folder}: max_position_embeddings: {ours.max_position_embeddings}, "
                f"but rows may have {max_positions} positions"
            )
        return
    read = spec.target_hidden_size if isinstance(spec, Eagle3Spec) else ours.hidden_size
    if read != theirs.hidden_size:
        raise Unsupported(f"{folder}: hidden_size: {read}, the target has {theirs.hidden_size}")
    num_layers = spec.num_target_layers
    if num_layers not in (None, theirs.num_real_layers):
        raise Unsupported(
            f"{folder}: num_target_layers: {num_layers}, the target has {theirs.num_real_layers}"
        )
    if max(spec.feature_layers) >= theirs.num_real_layers:
        raise Unsupported(
            f"{folder}: target_layer_ids: the target has no layer {max(spec.feature_layers)}"
        )


def _refuse_foreign_tensors(checkpoint: Checkpoint) -> None:
    """Dialects whose configs pass for others', told by their tensors."""
    reasons = {
        "midlayer.": "EAGLE-3, which config.json does not call it",
        "mtp.": "a DeepSeek-V4 bundle is not supported",
        "prefix_gru.": "Domino's jointly trained head is not supported",
        "logit_head.": "heads as SpecForge first named them; export with a later SpecForge",
    }
    for name in checkpoint.names():
        for prefix, reason in reasons.items():
            if name.startswith(prefix):
                raise Unsupported(f"{checkpoint.folder}: tensor {name}: {reason}")


def _refuse_local_head(options: DrafterOptions) -> None:
    if options.local_head is not None:
        raise Unsupported(
            f"speculation.local_head: {options.local_head}: "
            "a local head can only be added to a DFlash"
        )


def _local_head(
    options: DrafterOptions, target: TargetWeights | None, target_ids: Tensor | None
) -> SerialHead | None:
    folder = options.local_head
    if folder is None:
        return None
    refuse_pickles(folder)
    spec = read_draft_spec(folder)
    if not isinstance(spec, LocalHeadSpec) or target is None:
        raise Unsupported(f"{folder}: not a local head, or no target whose embeddings it reads")
    return load_local_head(
        folder,
        spec,
        target=target,
        dtype=options.dtype,
        backend=options.backend,
        options=options.fusion,
        target_ids=target_ids,
    )


def _language_model(
    folder: Path,
    spec: LanguageModelSpec,
    target: TargetWeights | None,
    options: DrafterOptions,
) -> LanguageModelDrafter:
    gamma = options.gamma or (DEFAULT_MOST_BLIND_GAMMA if options.chains_end else DEFAULT_GAMMA)
    with Checkpoint(folder) as checkpoint, torch.inference_mode():
        check_language_model(checkpoint, spec)
        weights = DraftWeights(
            checkpoint,
            dtype=options.dtype,
            backend=options.backend,
            target=target,
            bits=options.bits,
        )
        # What a config claims beyond that would only be memory.
        num_positions = options.max_positions + gamma
        model, target_ids = load_language_model(weights, spec, num_positions)
    return LanguageModelDrafter(
        model,
        backend=options.backend,
        gamma=gamma,
        num_context_tokens=options.num_context_tokens,
        target_ids=target_ids,
    )


def load_dflash(
    weights: DraftWeights,
    spec: BlockSpec,
    *,
    num_context_tokens: int,
    max_positions: int,
    head: SerialHead | None = None,
) -> BlockDrafter:
    """The drafter of a checked checkpoint, with a local head of its tokens if one is given."""
    backbone = load_backbone(weights, spec, max_positions + spec.block_size)
    return BlockDrafter(
        backbone,
        backend=weights.backend,
        num_context_tokens=num_context_tokens,
        head=head,
        target_ids=draft_vocabulary(weights, spec.decoder.vocab_size),
    )
