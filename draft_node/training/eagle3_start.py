"""What a run of an EAGLE-3 drafter begins with: a shape by its flags, or the drafter of --init."""

import argparse
from dataclasses import replace

from torch import Tensor

from draft_node.training.frozen_target import TargetFiles
from draft_node.training.given_drafter import given_spec, given_weights
from draft_node.training.options import check_feature_layers
from specserve.drafters.spec import DEEPSPEC, Eagle3Spec
from specserve.drafters.weights import EMBEDDING, LM_HEAD
from specserve.errors import InvalidField

NUM_FEATURES = 5  # the format has no other number


def starting_point(
    arguments: argparse.Namespace, target: TargetFiles
) -> tuple[Eagle3Spec, dict[str, Tensor] | None]:
    """What is to be trained, and the weights of --init."""
    if arguments.init is None:
        return new_spec(arguments, target), None
    spec = given_spec(arguments.init, target, "--init")
    if not isinstance(spec, Eagle3Spec):
        raise InvalidField("--init", f"{arguments.init}: is no eagle3")
    if spec.dialect != DEEPSPEC:
        problem = f"{arguments.init}: is in {spec.dialect}'s format, DeepSpec's can be trained on"
        raise InvalidField("--init", problem)
    for flag, asked, held in (
        ("--gamma", arguments.gamma, spec.gamma),
        ("--feature-layers", arguments.feature_layers, spec.feature_layers),
        ("--draft-vocab", arguments.draft_vocab, spec.draft_vocab_size),
    ):
        if asked not in (None, held):
            raise InvalidField(flag, f"{asked}: {arguments.init} was made with {held}")
    weights = given_weights(arguments.init, "--init")
    return spec, {n: w for n, w in weights.items() if n not in (EMBEDDING, LM_HEAD)}


def new_spec(arguments: argparse.Namespace, target: TargetFiles) -> Eagle3Spec:
    """One layer of the target's own shape; raises InvalidField for what cannot be."""
    num_layers = target.spec.num_real_layers
    layers = arguments.feature_layers or default_feature_layers(num_layers)
    if len(layers) != NUM_FEATURES:
        raise InvalidField("--feature-layers", f"{layers}: the format wants {NUM_FEATURES}")
    check_feature_layers(layers, num_layers)
    decoder = replace(
        target.spec, num_real_layers=1, ballast_widths=(), qk_norm=True, tie_word_embeddings=False
    )
    return Eagle3Spec(
        decoder=decoder,
        gamma=arguments.gamma or 7,
        feature_layers=layers,
        num_target_layers=num_layers,
        draft_vocab_size=arguments.draft_vocab or decoder.vocab_size,
        target_hidden_size=decoder.hidden_size,
        longest=arguments.gamma or 7,
    )


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """Five layers spread as DeepSpec spreads them; of a shallow target those below the last.

    Embeddings count as layer -1, and where even they do not make five, some come twice.
    """
    first, last = (1, num_layers - 3) if num_layers >= 12 else (num_layers - 6, num_layers - 2)
    first, last = max(-1, first), max(-1, last)
    return tuple(round(first + i * (last - first) / 4) for i in range(NUM_FEATURES))
