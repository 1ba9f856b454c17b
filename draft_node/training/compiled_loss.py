"""A model's loss as one compiled function, but for what its methods say stays out of it.

`torch.compiler.disable` on a method says the same, and imports the compiler with the module: two
seconds for everybody who compiles nothing.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from draft_node.training.trainable import Trainable

Method = TypeVar("Method", bound=Callable[..., object])

_MARK = "_stays_eager"


def stays_eager(method: Method) -> Method:
    """Of a model: `compiled_loss` calls it as it is."""
    setattr(method, _MARK, True)
    return method


def compiled_loss(
    model: Trainable, *, backend: str = "inductor"
) -> Callable[[Tensor, Tensor], Tensor]:
    """`model.loss`, compiled at its first call for each length of rows.

    Three row lengths are three static kernels, each faster than a general one.
    """
    for name, method in inspect.getmembers(type(model), inspect.isfunction):
        if hasattr(method, _MARK):
            setattr(model, name, torch.compiler.disable(getattr(model, name)))
    return torch.compile(model.loss, dynamic=False, backend=backend)
