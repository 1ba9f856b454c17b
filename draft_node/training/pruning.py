"""A small language model cut out of its target: some layers, and of each MLP the units that matter.

Units are ranked by what they write to the residual on sample text (root mean square activation
times the norm of their column), and the columns of those that stay are fitted again by least
squares to what all of them wrote. Distillation then has far less to repair than a random start has
to learn. Knows no training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from draft_node.training.decoder import MLP, Decoder, DecoderConfig
from draft_node.training.frozen_target import FrozenTarget
from specserve.errors import InvalidField
from specserve.models.config import RopeSpec

_RIDGE = 1e-2  # of the mean second moment of the activations
_FIELDS = {
    "--hidden": ("hidden_size", "hidden_size"),
    "--heads": ("num_attention_heads", "num_heads"),
    "--kv-heads": ("num_key_value_heads", "num_kv_heads"),
    "--head-dim": ("head_dim", "head_dim"),
}


@torch.no_grad()
def cut(
    target: FrozenTarget, layers: Sequence[int], config: DecoderConfig, token_ids: Tensor
) -> dict[str, Tensor]:
    """Weights of a `Decoder` of `config`, float32, that starts as `layers` of the target.

    `token_ids` [R, T] is the sample text. Raises InvalidField where shapes differ in more than the
    width of the MLPs, or where there is no such layer.
    """
    _check(target, layers, config)
    whole = DecoderConfig(**{**vars(config), "intermediate_size": target.spec.intermediate_size})
    model = Decoder(whole).to(target.device)
    weights = {
        "model.embed_tokens.weight": target.embedding,
        "model.norm.weight": target.final_norm().to(target.device),
    }
    for place, index in enumerate(layers):
        for name, tensor in target.layer_tensors(index).items():
            weights[f"model.layers.{place}.{name}"] = tensor.to(target.device)
    model.load_state_dict(weights)
    activations = _activations(model, token_ids.to(target.device))
    for place, found in enumerate(activations):
        _thin(weights, f"model.layers.{place}.mlp.", found, config.intermediate_size)
    return {name: weight.float().cpu() for name, weight in weights.items()}


def _check(target: FrozenTarget, layers: Sequence[int], config: DecoderConfig) -> None:
    spec = target.spec
    for flag, (mine, others) in _FIELDS.items():
        if getattr(config, mine) != getattr(spec, others):
            raise InvalidField(flag, f"a model cut out of this target has {getattr(spec, others)}")
    rope = RopeSpec(theta=config.rope_theta)
    norms = spec.qk_norm and spec.rms_norm_eps == config.rms_norm_eps
    if not (norms and spec.rope == rope and spec.tie_word_embeddings):
        problem = "a target with other norms, rotary positions or an output head of its own"
        raise InvalidField("--cut", f"{problem} cannot be cut; train a model from scratch")
    if not 0 < config.intermediate_size <= spec.intermediate_size:
        raise InvalidField("--intermediate", f"the target has {spec.intermediate_size} units")
    if len(layers) != config.num_hidden_layers:
        raise InvalidField("--cut", f"{len(layers)} layers are not {config.num_hidden_layers}")
    for index in layers:
        if not 0 <= index < spec.num_real_layers:
            raise InvalidField("--cut", f"the target has no layer {index}")


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
