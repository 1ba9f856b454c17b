"""A drafter whose folder a flag names: what it is, or under the flag's name why it will not do."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from draft_node.training.frozen_target import TargetFiles
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.load import load_features
from specserve.drafters.spec import BlockSpec, DraftSpec
from specserve.drafters.weights import TargetWeights
from specserve.errors import InvalidField, Unsupported
from specserve.models.scaled_bytes import unpacked

WEIGHTS_FILE = "model.safetensors"


def given_spec(folder: Path, target: TargetFiles, flag: str) -> DraftSpec:
    """What the drafter is; of one that reads features, all tensors are there and fit the target."""
    try:
        spec = read_draft_spec(folder)
        weights = TargetWeights(target.folder, target.spec)
        load_features(
            folder, weights, dtype=torch.float32, backend=TorchBackend(torch.device("cpu"))
        )
    except Unsupported as error:
        raise InvalidField(flag, str(error)) from error
    return spec


def given_weights(folder: Path, flag: str) -> dict[str, Tensor]:
    """All its tensors, float32, without the "model." that some checkpoints' names begin with."""
    try:
        weights = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise InvalidField(flag, f"{folder}: {error}") from error
    plain = unpacked(weights)
    return {name.removeprefix("model."): weight.float() for name, weight in plain.items()}


def refuse_unless_dflash(folder: Path, target: TargetFiles, flag: str) -> None:
    """Raise InvalidField unless a local head can be added to it."""
    spec = given_spec(folder, target, flag)
    if not isinstance(spec, BlockSpec) or spec.markov is not None or spec.confidence is not None:
        raise InvalidField(flag, f"{folder}: a local head can only be added to a DFlash")
