"""A small language model cut out of its target: some layers, and of each MLP the units that matter.

Units are ranked by what they write to the residual on sample text (root mean square activation
times the norm of their column), and the columns of those that stay are fitted again by least
squares to what all of them wrote. Distillation then has far less to repair than a random start has
to learn. Knows no training.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from draft_node.training.decoder import MLP, Decoder, DecoderConfig, FrozenEmbeddings
from draft_node.training.frozen_target import FrozenTarget
from specserve.errors import InvalidField
from specserve.models.config import ModelSpec

_RIDGE = 1e-2  # of the mean second moment of the activations


def cut_shape(target: ModelSpec, layers: Sequence[int], intermediate_size: int) -> DecoderConfig:
    """Of a model of these layers of the target, whose feed-forward blocks have so many units.

    Raises InvalidField where the target has no such layer, or not so many units.
    """
    if not 0 < intermediate_size <= target.intermediate_size:
        problem = f"{intermediate_size}: the target has {target.intermediate_size} units"
        raise InvalidField("--intermediate", problem)
    for index in layers:
        if not 0 <= index < target.num_real_layers:
            last = target.num_real_layers - 1
            raise InvalidField("--cut", f"{index}: the target has layers 0..{last}")
    shape = DecoderConfig.of(target)
    return replace(shape, num_hidden_layers=len(layers), intermediate_size=intermediate_size)


@torch.no_grad()
def cut(
    target: FrozenTarget,
    layers: Sequence[int],
    intermediate_size: int,
    token_ids: Tensor,
    *,
    with_embeddings: bool,
) -> dict[str, Tensor]:
    """Weights of a `Decoder` of `cut_shape`, float32, that starts as `layers` of the target.

    `token_ids` [R, T] is the sample text. `with_embeddings`: the target's are among the weights.
    """
    whole = cut_shape(target.spec, layers, target.spec.intermediate_size)
    frozen = FrozenEmbeddings(target.embedding, target.lm_head)
    model = Decoder(whole, frozen).to(target.device)
    weights = {"model.norm.weight": target.final_norm().to(target.device)}
    for place, index in enumerate(layers):
        for name, tensor in target.layer_tensors(index).items():
            weights[f"model.layers.{place}.{name}"] = tensor.to(target.device)
    model.load_state_dict(weights)
    activations = _activations(model, token_ids.to(target.device))
    for place, found in enumerate(activations):
        _thin(weights, f"model.layers.{place}.mlp.", found, intermediate_size)
    if with_embeddings:
        weights["model.embed_tokens.weight"] = target.embedding
        if not whole.tie_word_embeddings:
            weights["lm_head.weight"] = target.lm_head
    return {name: weight.float().cpu() for name, weight in weights.items()}


def _activations(model: Decoder, token_ids: Tensor) -> list[Tensor]:
    """What enters each layer's down projection: [R * T, units] a layer."""
    found: list[Tensor] = []

    def note(_: nn.Module, given: tuple[Tensor]) -> None:
        found.append(given[0].flatten(0, 1))

    downs = [module for module in model.modules() if isinstance(module, MLP)]
    hooks = [mlp.down_proj.register_forward_pre_hook(note) for mlp in downs]
    model.hidden(token_ids)
    for hook in hooks:
        hook.remove()
    return found


def _thin(weights: dict[str, Tensor], prefix: str, activations: Tensor, num_units: int) -> None:
    """Keep `num_units` of one MLP."""
    down = weights[f"{prefix}down_proj.weight"]
    if num_units == down.shape[1]:
        return
    written = activations.pow(2).mean(0).sqrt() * down.norm(dim=0)
    kept = written.topk(num_units).indices.sort().values
    for name in ("gate_proj", "up_proj"):
        weights[f"{prefix}{name}.weight"] = weights[f"{prefix}{name}.weight"][kept]
    staying = activations[:, kept]
    moments = staying.T @ staying
    moments += _RIDGE * moments.diag().mean() * torch.eye(num_units, device=moments.device)
    fitted = torch.linalg.solve(moments, staying.T @ (activations @ down.T))
    weights[f"{prefix}down_proj.weight"] = fitted.T.contiguous()
