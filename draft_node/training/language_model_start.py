"""What a language model starts as: its shape, whose embeddings it has, which tokens it drafts."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from draft_node.training import draft_vocabulary
from draft_node.training.decoder import DecoderConfig
from draft_node.training.frozen_target import TargetFiles
from draft_node.training.given_drafter import given_spec, given_weights
from draft_node.training.pruning import cut_shape
from draft_node.training.rotary import refuse_untold
from specserve.drafters.spec import LanguageModelSpec
from specserve.drafters.weights import IN_DRAFT, OFFSETS
from specserve.errors import InvalidField

# Flags by the fields that they set.
_FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}

_PREFIXES = ("model.", "lm_head.", OFFSETS, IN_DRAFT)


@dataclass(frozen=True)
class StartingPoint:
    """Of a run, before its text is read."""

    shape: DecoderConfig
    owns_embeddings: bool  # else they are the target's, neither trained nor stored
    draft_vocab_size: int | None  # None: all tokens are drafted
    weights: dict[str, Tensor] | None = None  # of --init, float32
    draft_ids: Tensor | None = None  # of --init


def starting_point(arguments: argparse.Namespace, target: TargetFiles) -> StartingPoint:
    """What the flags ask for; raises InvalidField naming the one that cannot be."""
    draft_vocabulary.refuse_size(arguments.draft_vocab, target.spec.vocab_size)
    size = _part(arguments, target)
    if arguments.init is not None:
        start = _given(arguments, target)
        owner = str(arguments.init)
    elif arguments.cut is not None:
        refuse_untold(target.spec.rope)
        width = arguments.intermediate or target.spec.intermediate_size
        shape = cut_shape(target.spec, arguments.cut, width)
        start = StartingPoint(shape, arguments.own_embeddings, size)
        owner = "what --cut names"
    else:
        start = StartingPoint(_from_scratch(arguments, target), True, size)
        owner = ""
    if start.owns_embeddings and start.draft_vocab_size is not None:
        problem = "a part of the target's own output head: --cut without --own-embeddings has that"
        raise InvalidField("--draft-vocab", problem)
    for name, field in _FIELDS.items():
        asked, held = getattr(arguments, name), getattr(start.shape, field)
        if asked not in (None, held):
            raise InvalidField(f"--{name.replace('_', '-')}", f"{asked}: {owner} has {held}")
    return start


def _part(arguments: argparse.Namespace, target: TargetFiles) -> int | None:
    """--draft-vocab; None of all tokens, too, which are no part and have no tables."""
    size: int | None = arguments.draft_vocab
    return None if size == target.spec.vocab_size else size


def _from_scratch(arguments: argparse.Namespace, target: TargetFiles) -> DecoderConfig:
    """As the flags say, with the target's vocabulary and positions."""
    shape = DecoderConfig(
        vocab_size=target.spec.vocab_size,
        hidden_size=arguments.hidden or 128,
        num_hidden_layers=arguments.layers or 2,
        num_attention_heads=arguments.heads or 4,
        num_key_value_heads=arguments.kv_heads or 2,
        head_dim=arguments.head_dim or 32,
        intermediate_size=arguments.intermediate or 384,
        max_position_embeddings=target.spec.max_position_embeddings,
    )
    if shape.num_attention_heads % shape.num_key_value_heads:
        num_heads = shape.num_attention_heads
        raise InvalidField("--kv-heads", f"{num_heads} heads cannot share them evenly")
    if shape.head_dim % 2:
        raise InvalidField("--head-dim", "has to be even: rotary positions turn pairs")
    return shape


def _given(arguments: argparse.Namespace, target: TargetFiles) -> StartingPoint:
    """The model of --init."""
    folder: Path = arguments.init
    spec = given_spec(folder, target, "--init")
    if not isinstance(spec, LanguageModelSpec):
        raise InvalidField("--init", f"{folder}: is no language model")
    if arguments.own_embeddings and not spec.embeddings_stored:
        raise InvalidField("--own-embeddings", f"{folder} has none: they are the target's")
    weights = {
        name if name.startswith(_PREFIXES) else f"model.{name}": weight
        for name, weight in given_weights(folder, "--init").items()
    }
    if spec.decoder.tie_word_embeddings:
        weights.pop("lm_head.weight", None)  # which is the embedding
    draft_ids = draft_vocabulary.from_tables(weights)
    asked, size = arguments.draft_vocab, None if draft_ids is None else len(draft_ids)
    if None not in (asked, size) and asked != size:
        raise InvalidField("--draft-vocab", f"{asked}: {folder} was made with {size}")
    shape = DecoderConfig.of(spec.decoder)
    return StartingPoint(
        shape, spec.embeddings_stored, size or _part(arguments, target), weights, draft_ids
    )
