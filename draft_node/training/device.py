"""What training does on one kind of device and not on another: number formats, compilation.

`torch.compiler.disable` on a method says what `stays_eager` does, and imports the compiler with the
module: two seconds for everybody who compiles nothing.
"""

import inspect
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from draft_node.training.trainable import Trainable


def fast_bfloat16(device: torch.device | str) -> bool:
    """Whether bfloat16 products are native: on GPUs, and on CPUs with AVX-512 or AMX units."""
    if torch.device(device).type == "cuda":
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_cpu(device: torch.device | str) -> bool:
    """Where memory is the system's, and bfloat16 and fused attention may be slow."""
    return str(device).partition(":")[0] == "cpu"


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
