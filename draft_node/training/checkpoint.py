"""Training checkpoints: one safetensors file, written atomically. No pickle."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specserve.drafters.weights import is_finite
from specserve.errors import Unsupported

FILE_NAME = "checkpoint.safetensors"
_MOST_STEPS = 2**32  # what a step draws is a function of 64 bits, half of them the seed


@dataclass
class Progress:
    """Everything about a run that is not a tensor."""

    step: Annotated[int, Meta(ge=0, lt=_MOST_STEPS)] = 0
    tokens: Annotated[int, Meta(ge=0)] = 0
    active_s: Annotated[float, Meta(ge=0)] = 0.0
    recent_step_s: list[float] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def save(path: Path, model: dict[str, Tensor], optimizer: dict[str, Tensor], at: Progress) -> None:
    """Write to a temporary file, then replace: a crash leaves the old checkpoint."""
    tensors = {f"model/{name}": t.detach().contiguous() for name, t in model.items()}
    tensors |= {f"optimizer/{name}": t.detach().contiguous() for name, t in optimizer.items()}
    temporary = path.with_suffix(".tmp")
    notes = {"progress": json.dumps(asdict(at)), "tensors": json.dumps(sorted(tensors))}
    save_file(tensors, temporary, metadata=notes)
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Progress]:
    """Model tensors, optimizer tensors and progress.

    Raises Unsupported if they cannot be read, if a tensor is missing or if one is not finite.
    """
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata()
            for key in file.keys():  # noqa: SIM118 - safe_open is no mapping
                kind, _, name = key.partition("/")
                groups[kind][name] = tensor = file.get_tensor(key)
                if not is_finite(tensor):
                    raise unusable(path, f"tensor {key} holds NaN or infinity")
            # An older version's has no list of its tensors.
            for key in json.loads(notes.get("tensors", "[]")):
                if key not in file.keys():  # noqa: SIM118
                    raise unusable(path, f"tensor {key} is missing")
        progress = msgspec.json.decode(notes["progress"], type=Progress)
    except (
        SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        msgspec.MsgspecError,
    ) as error:  # fmt: skip
        raise unusable(path, f"cannot be read ({error})") from error
    return groups["model"], groups["optimizer"], progress


def refuse_other_tensors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first model tensor that is missing, too much or misshapen."""
    for name in [*wanted, *found]:
        if name not in found:
            raise ValueError(f"tensor model/{name} is missing")
        if name not in wanted:
            raise ValueError(f"tensor model/{name} is none of this model")
        refuse_other_shape(f"model/{name}", found[name], wanted[name].shape)


def refuse_other_shape(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Raise ValueError naming the tensor unless it has this shape."""
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"tensor {name} has shape {[*tensor.shape]} instead of {[*shape]}")


def unusable(path: Path, problem: object) -> Unsupported:
    """The error that a file of the run's folder is one from which no run goes on, and a way out."""
    return Unsupported(f"{path}: {problem}; --restart forgets it")
