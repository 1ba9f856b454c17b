# pyright: strict
"""Ballast: layers that cost like real ones and change nothing, to make a target of chosen size.

A ballast layer has random weights and zero output projections, so it adds exactly zero to the
residual stream while its matrices are read and multiplied like any other. This module only decides
how many such layers there are and how wide; `specserve.models.loader` fills them.
"""

import math
from dataclasses import replace

from specserve.errors import InvalidField
from specserve.models.config import ModelSpec

WIDTH_STEP = 64  # widths stay divisible by every useful tile


def with_ballast(spec: ModelSpec, num_params: int) -> ModelSpec:
    """`spec` padded with ballast layers to about `num_params` parameters; 0 leaves it alone.

    A layer costs dispatch time besides its arithmetic, so ballast is wide rather than deep: about
    half as many layers as their width counts hidden sizes, where L layers of width 2*L*hidden hold
    6 * (L * hidden)**2 parameters. Raises `InvalidField` when the model is larger already.
    """
    if num_params == 0:
        return spec
    extra = num_params - spec.num_params
    hidden = spec.hidden_size
    smallest = spec.layer_params(WIDTH_STEP)
    if extra < smallest / 2:
        raise InvalidField(
            "ballast",
            f"{num_params} parameters leave no room for a layer beside the model's own "
            f"{spec.num_params}; the least is {spec.num_params + smallest}",
        )
    num_layers = max(1, round(math.sqrt(extra / 6) / hidden))
    step_params = spec.layer_params(WIDTH_STEP) - spec.layer_params(0)
    # The widths differ by one step at most, which brings the total within half a step.
    steps = max(num_layers, round((extra - num_layers * spec.layer_params(0)) / step_params))
    wide, narrow = steps % num_layers, steps // num_layers
    widths = [narrow + 1] * wide + [narrow] * (num_layers - wide)
    return replace(spec, ballast_widths=tuple(WIDTH_STEP * width for width in widths))
