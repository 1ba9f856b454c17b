"""Where a drafter's weights begin: at layers of its target, as far as shapes allow.

The layers of a block drafter start as layers of the target, the first, the last and those evenly
between, since a token is not understood without the first nor predicted without the last. c_p
starts as the normalised input of the last of them, so that its context entries are the target's
own keys and values; those of the others, whose inputs c_p is not, are fitted to the target's by
least squares on sample text. The one layer of an EAGLE-3 starts as the target's last, and reads the
sum of token and feature: after 50 steps of 1,024 tokens of code its loss was 6.11, with small
random weights for the token's half 6.23, for everything 6.55. The rest follows the published
recipe: N(0, 0.02), biases 0, norms 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from draft_node.training.block_model import BlockModel
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.frozen_target import FrozenTarget
from specserve.drafters.spec import BlockSpec, Eagle3Spec
from specserve.models.config import ModelSpec

_DEVIATION = 0.02
_RIDGE = 1e-2  # of the mean second moment of what is fitted from
_EVERY = 4  # one in so many tokens of the sample is fitted as one that is pending, besides


@torch.no_grad()
def initialise(
    drafter: BlockModel | Eagle3Model,
    target: FrozenTarget,
    seed: int,
    sample: Tensor | None = None,
) -> None:
    """Random weights, then the target's where a layer has the same shape.

    `sample` int64 [R, T] is text to fit context entries on; without it they stay as copied.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in drafter.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            drawn = torch.empty(parameter.shape).normal_(0.0, _DEVIATION, generator=generator)
            parameter.copy_(drawn)
    copied = copied_layers(drafter.spec, target.spec)
    if not copied:
        return
    if isinstance(drafter, Eagle3Model):
        _copy_last_layer(drafter, target)
        return
    _copy_layers(drafter, target, copied)
    if sample is not None:
        _fit_context(drafter, target, copied, sample.to(target.device))


def copied_layers(spec: BlockSpec | Eagle3Spec, target: ModelSpec) -> list[int]:
    """The target's layers that the drafter's begin as, in its order; none where shapes differ."""
    if not fits(spec.decoder, target):
        return []
    if isinstance(spec, Eagle3Spec):
        return [target.num_real_layers - 1]
    return spread(spec.decoder.num_layers, target.num_real_layers)


def fits(draft: ModelSpec, target: ModelSpec) -> bool:
    """Whether the target's layers can become the drafter's."""
    fields = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "rope")
    deep_enough = draft.num_layers < target.num_real_layers
    return deep_enough and all(getattr(draft, name) == getattr(target, name) for name in fields)


def spread(count: int, num_layers: int) -> list[int]:
    """`count` of `num_layers`: the last, the first where there are two, and evenly between."""
    if count == 1:
        return [num_layers - 1]
    return [round(place * (num_layers - 1) / (count - 1)) for place in range(count)]


def _copy_layers(drafter: BlockModel, target: FrozenTarget, copied: Sequence[int]) -> None:
    for layer, index in zip(drafter.layers, copied, strict=True):
        _load(layer, target.layer_tensors(index))
    before = target.layer_tensors(copied[-1])["input_layernorm.weight"]
    _load(drafter, {"hidden_norm.weight": before, "norm.weight": target.final_norm()})
    _pick_residual(drafter, copied[-1] - 1)


def _fit_context(
    drafter: BlockModel, target: FrozenTarget, copied: Sequence[int], sample: Tensor
) -> None:
    """Make keys and values from c_p like those that the target's layers make from their inputs.

    The same weights serve pending tokens, which enter as in the target: some are fitted along.
    """
    features, _ = target.read(sample, drafter.spec.feature_layers)
    context = drafter.hidden_norm(drafter.fc(features.float())).flatten(0, 1)
    for layer, index in zip(drafter.layers[:-1], copied, strict=False):
        residual, _ = target.read(sample, (index - 1,))
        norm = layer.get_submodule("input_layernorm")
        normed = norm(residual.float()).flatten(0, 1)
        given = torch.cat([context, normed[::_EVERY]])
        wanted = torch.cat([normed, normed[::_EVERY]])
        moments = given.T @ given
        moments += _RIDGE * moments.diag().mean() * torch.eye(len(moments), device=given.device)
        for name in ("self_attn.k_proj.weight", "self_attn.v_proj.weight"):
            weight = layer.get_parameter(name)
            entries = F.linear(wanted, weight)
            weight.copy_(torch.linalg.solve(moments, given.T @ entries).T)


def _copy_last_layer(drafter: Eagle3Model, target: FrozenTarget) -> None:
    last = target.spec.num_real_layers - 1
    tensors = target.layer_tensors(last)
    tensors["hidden_norm.weight"] = tensors.pop("input_layernorm.weight")
    for name in (f"self_attn.{kind}_proj.weight" for kind in "qkv"):
        tensors[name] = torch.cat([tensors[name], tensors[name]], dim=1)
    _load(drafter.layers[0], tensors)
    _load(drafter, {"norm.weight": target.final_norm()})
    _pick_residual(drafter, last - 1)


def _pick_residual(drafter: BlockModel | Eagle3Model, wanted: int) -> None:
    """Make fc pass on the residual behind layer `wanted`, or the nearest that it gets."""
    layers, hidden = drafter.spec.feature_layers, drafter.spec.decoder.hidden_size
    nearest = min(range(len(layers)), key=lambda place: abs(layers[place] - wanted))
    picked = drafter.fc.weight[:, nearest * hidden : (nearest + 1) * hidden]
    picked.add_(torch.eye(hidden, device=picked.device, dtype=picked.dtype))


def _load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy what is there; a target without query and key norms leaves those at 1."""
    module.load_state_dict(tensors, strict=False)
