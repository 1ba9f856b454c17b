"""What a run of a drafter begins with: a shape by its flags, or the drafter of --init."""

import argparse
from dataclasses import replace

import torch
from torch import Tensor

from draft_node.training import eagle3_start
from draft_node.training.draft_vocabulary import refuse_size
from draft_node.training.frozen_target import TargetFiles
from draft_node.training.given_drafter import given_spec, given_weights
from draft_node.training.mask_token import mask_token
from draft_node.training.options import check_feature_layers
from draft_node.training.rotary import refuse_untold
from specserve.drafters.spec import (
    DEEPSPEC,
    BlockSpec,
    ConfidenceSpec,
    Eagle3Spec,
    Layout,
    MarkovKind,
    MarkovSpec,
)
from specserve.drafters.weights import EMBEDDING, LM_HEAD
from specserve.errors import InvalidField
from specserve.models.config import ModelSpec


def starting_point(
    arguments: argparse.Namespace, target: TargetFiles
) -> tuple[BlockSpec | Eagle3Spec, dict[str, Tensor] | None]:
    """What is to be trained, and the weights of --init."""
    refuse_untold(target.spec.rope)
    refuse_size(arguments.draft_vocab, target.spec.vocab_size)
    if arguments.kind == "eagle3":
        return eagle3_start.starting_point(arguments, target)
    if arguments.init is None:
        return new_spec(arguments, target), None
    spec = given_spec(arguments.init, target, "--init")
    if not isinstance(spec, BlockSpec) or spec.gemma4 or spec.layout is not Layout.ANCHOR_FIRST:
        raise InvalidField("--init", f"{arguments.init}: not a DSpark or DFlash, anchor first")
    _refuse_changes(arguments, spec)
    weights = given_weights(arguments.init, "--init")
    qk_norm = "layers.0.self_attn.q_norm.weight" in weights
    # No weight knows how many slots there are, so that short blocks can be learned first.
    gamma = arguments.gamma or spec.gamma
    spec = replace(spec, decoder=replace(spec.decoder, qk_norm=qk_norm), block_size=gamma)
    own = {name: w for name, w in weights.items() if name not in (EMBEDDING, LM_HEAD)}
    return _deepened(spec, own, arguments.layers or spec.decoder.num_layers)


def _deepened(
    spec: BlockSpec, weights: dict[str, Tensor], num_layers: int
) -> tuple[BlockSpec, dict[str, Tensor]]:
    """With layers on top that are copies of the last one and change nothing yet."""
    last = spec.decoder.num_layers - 1
    above = {name: w for name, w in weights.items() if name.startswith(f"layers.{last}.")}
    for layer in range(last + 1, num_layers):
        for name, weight in above.items():
            silent = name.endswith(("o_proj.weight", "down_proj.weight"))
            copy = torch.zeros_like(weight) if silent else weight.clone()
            weights[name.replace(f"layers.{last}.", f"layers.{layer}.", 1)] = copy
    return replace(spec, decoder=replace(spec.decoder, num_real_layers=num_layers)), weights


def new_spec(arguments: argparse.Namespace, target: TargetFiles) -> BlockSpec:
    """A drafter with the target's own width; raises InvalidField for what cannot be."""
    num_layers = target.spec.num_real_layers
    layers = arguments.feature_layers or default_feature_layers(num_layers)
    check_feature_layers(layers, num_layers)
    mask = mask_token(target.folder, target.spec, arguments.mask_token_id)
    markov = confidence = None
    if arguments.kind == "dspark":
        markov, confidence = _heads(arguments)
    decoder: ModelSpec = replace(
        target.spec,
        num_real_layers=arguments.layers or 2,
        ballast_widths=(),
        qk_norm=True,
        tie_word_embeddings=False,
    )
    return BlockSpec(
        dialect=DEEPSPEC,
        decoder=decoder,
        layout=Layout.ANCHOR_FIRST,
        block_size=arguments.gamma or 7,
        mask_token_id=mask,
        feature_layers=layers,
        num_target_layers=num_layers,
        draft_vocab_size=arguments.draft_vocab or decoder.vocab_size,
        embeddings_stored=False,
        markov=markov,
        confidence=confidence,
    )


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """Five layers spread as DeepSpec spreads them; the last three but one of a shallow target."""
    if num_layers < 12:
        return tuple(range(max(0, num_layers - 4), max(1, num_layers - 1)))
    return tuple(round(1 + i * (num_layers - 4) / 4) for i in range(5))


def _heads(arguments: argparse.Namespace) -> tuple[MarkovSpec | None, ConfidenceSpec | None]:
    kind, confidence = arguments.markov or "vanilla", arguments.confidence or "markov"
    if kind == "none" and confidence == "markov":
        raise InvalidField("--confidence", "markov: there is no Markov head, only hidden or none")
    if kind == confidence == "none":
        raise InvalidField("--markov", "none: a DSpark without heads is a DFlash; train that")
    markov = None if kind == "none" else MarkovSpec(MarkovKind(kind), arguments.rank or 64)
    return markov, None if confidence == "none" else ConfidenceSpec(confidence == "markov")


def _refuse_changes(arguments: argparse.Namespace, spec: BlockSpec) -> None:
    """Flags that ask for another drafter than --init holds."""
    heads = spec.markov is not None or spec.confidence is not None
    if heads != (arguments.kind == "dspark"):
        raise InvalidField("--init", f"{arguments.init}: is no {arguments.kind}")
    confidence = "none"
    if spec.confidence is not None:
        confidence = "markov" if spec.confidence.with_markov else "hidden"
    held = {
        "layers": max(spec.decoder.num_layers, arguments.layers or 0),  # deeper is possible
        "feature_layers": spec.feature_layers,
        "mask_token_id": spec.mask_token_id,
        "markov": spec.markov.kind.value if spec.markov else "none",
        "rank": spec.markov.rank if spec.markov else 0,
        "confidence": confidence,
        "draft_vocab": spec.draft_vocab_size,
    }
    for name, value in held.items():
        asked = getattr(arguments, name, None)
        if asked is not None and asked != value:
            flag = f"--{name.replace('_', '-')}"
            raise InvalidField(flag, f"{asked}: {arguments.init} was made with {value}")
