"""What compiled functions have to know of a model: views of its weights, and addresses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specserve.backends.cpu.parts import CompiledLinear
from specserve.backends.cpu.row_kernels import RowKernels
from specserve.models.layers import DecoderLayer
from specserve.models.parts import Linear
from specserve.models.projection import GatheredProjection, ReducedProjection
from specserve.models.transformer import Transformer

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class Norms(NamedTuple):
    """Of L layers; heads are this rank's."""

    weights: Floats  # [2 L + 1, E], in the order in which they are applied
    epsilons: Floats  # [2 L + 1]
    head_weights: Floats  # [L, H + KV, D], or [L, 0, D] where there are none
    head_epsilons: Floats  # [L]


def are_compiled(model: Transformer) -> bool:
    """Whether all products of its layers are machine code of ours."""
    return all(isinstance(p, CompiledLinear) for layer in model.layers for p in products_of(layer))


def products_of(layer: DecoderLayer) -> tuple[Linear, ...]:
    """This rank's, in the order in which they are made."""
    closing = (layer.o_proj, layer.down_proj)
    o_proj, down_proj = (
        p.linear if isinstance(p, GatheredProjection | ReducedProjection) else p for p in closing
    )
    return layer.qkv, o_proj, layer.gate_up, down_proj


def products(layers: Sequence[DecoderLayer]) -> tuple[Integers, list[RowKernels]]:
    """int64 [L, 4, 4]: address of a weight, inputs, panels, and which of the kernels it has."""
    found = [[_compiled(p) for p in products_of(layer)] for layer in layers]
    used = list(dict.fromkeys(p.kernels for of_layer in found for p in of_layer))
    return np.array([[_words(p, used) for p in of_layer] for of_layer in found]), used


def alone(product: Linear) -> tuple[Integers, Integers]:
    """One product, as `multiply` takes it: its words [4], and the functions [1, n]."""
    found = _compiled(product)
    return np.array(_words(found, [found.kernels])), np.array([found.kernels.addresses])


def norms(model: Transformer) -> Norms:
    layers = model.layers
    all_norms = [norm for layer in layers for norm in (layer.input_norm, layer.mlp_norm)]
    all_norms.append(model.final_norm)
    head_norms = [layer.qk_norm for layer in layers if layer.qk_norm is not None]
    none = np.empty((len(layers), 0, model.config.head_dim), np.float32)
    return Norms(
        weights=np.stack([norm.weight.numpy() for norm in all_norms]),
        epsilons=np.array([norm.eps for norm in all_norms], np.float32),
        head_weights=np.stack([n.weight.numpy() for n in head_norms]) if head_norms else none,
        head_epsilons=np.array([n.eps for n in head_norms] or [0.0] * len(layers), np.float32),
    )


def _compiled(product: Linear) -> CompiledLinear:
    if not isinstance(product, CompiledLinear):
        raise TypeError(f"{type(product).__name__} is not compiled: ask `are_compiled` beforehand")
    return product


def _words(product: CompiledLinear, used: list[RowKernels]) -> list[int]:
    weight, kernels = product.weight, product.kernels
    return [weight.data_ptr(), kernels.num_inputs(weight), len(weight), used.index(kernels)]
