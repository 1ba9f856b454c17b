"""Training checkpoints: one safetensors file, written atomically. No pickle."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specserve.errors import Unsupported

FILE_NAME = "checkpoint.safetensors"


@dataclass
class Progress:
    """Everything about a run that is not a tensor."""

    step: int = 0
    tokens: int = 0
    active_s: float = 0.0
    recent_step_s: list[float] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)


def save(path: Path, model: dict[str, Tensor], optimizer: dict[str, Tensor], at: Progress) -> None:
    """Write to a temporary file, then replace: a crash leaves the old checkpoint."""
    tensors = {f"model/{name}": t.detach().contiguous() for name, t in model.items()}
    tensors |= {f"optimizer/{name}": t.detach().contiguous() for name, t in optimizer.items()}
    temporary = path.with_suffix(".tmp")
    save_file(tensors, temporary, metadata={"progress": json.dumps(asdict(at))})
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Progress]:
    """Model tensors, optimizer tensors and progress; raises Unsupported if they cannot be read."""
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            for key in file.keys():  # noqa: SIM118 - safe_open is no mapping
                kind, _, name = key.partition("/")
                groups[kind][name] = file.get_tensor(key)
    except (
        SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError
    ) as error:  # fmt: skip
        raise Unsupported(f"{path}: cannot be read ({error}); --restart forgets it") from error
    return groups["model"], groups["optimizer"], progress
