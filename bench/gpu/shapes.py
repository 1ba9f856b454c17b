"""Models of published shapes with random weights, made where they run: nothing is on a disk.

They are put together by the loaders of real checkpoints, for the backend that a node would choose.
A rank's share of a target on several devices is a model like any other: with a part of the heads,
of the width and of the vocabulary. What ranks exchange is missing from it.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specserve.backends.base import Backend
from specserve.backends.choose import choose_backend
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.dialect_deepspec import read_deepspec
from specserve.drafters.dspark import block_tensors, load_dspark
from specserve.drafters.weights import DraftWeights
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import ModelSpec, decoder_spec
from specserve.models.loader import assemble, expected_tensors
from specserve.models.parallel import TensorParallel
from specserve.settings.hardware import probe
from specserve.settings.resolve import kv_bytes_per_token
from target_node.runner import Runner

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
_NOWHERE = Path("random weights")


@dataclass(frozen=True)
class Shape:
    """A target, or one rank's share of it on `devices`."""

    name: str
    config: Mapping[str, Any]  # as its config.json has it, of the whole model
    devices: int = 1

    @property
    def share(self) -> dict[str, Any]:
        """config.json of what one rank computes."""
        dealt = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
        return dict(self.config) | {name: self.config[name] // self.devices for name in dealt}

    @property
    def spec(self) -> ModelSpec:
        """Of the share."""
        return decoder_spec(self.share, _NOWHERE)

    def block_config(self, gamma: int, num_layers: int) -> dict[str, Any]:
        """config.json of a DSpark for the whole model, as published ones are made."""
        depth = self.config["num_hidden_layers"]
        return dict(self.config) | {
            "block_size": gamma,
            "target_layer_ids": sorted({1 + place * (depth - 2) // 5 for place in range(5)}),
            "mask_token_id": self.config["vocab_size"] - 1,
            "num_hidden_layers": num_layers,
            "num_target_layers": depth,
            "num_anchors": 1,
            "markov_rank": min(256, self.config["hidden_size"]),
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "tie_word_embeddings": False,
        }


class RandomCheckpoint(Checkpoint):
    """Tensors of given shapes, drawn on a device when they are read."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        self.folder = _NOWHERE
        self._shapes, self._device = shapes, device

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, dtype=DTYPE, device=self._device)
        cuts = part or tuple(slice(None) for _ in shape)
        sizes = [len(range(*cut.indices(size))) for cut, size in zip(cuts, shape, strict=True)]
        bound = math.sqrt(3 / shape[1])  # so that sums of a row's products stay as large
        return torch.empty(sizes, dtype=DTYPE, device=self._device).uniform_(-bound, bound)


def backend_on(device: str) -> Backend:
    """The device's, with its graphs; on a CPU that which it hands to what it has no graph of."""
    if device == "cpu":
        return TorchBackend(torch.device(device))
    return choose_backend(torch.device(device), cuda_graphs=True)


def runner_of(shape: Shape, backend: Backend, *, most_slots: int, share: float) -> Runner:
    """A rank's runner, with a pool of at most `most_slots` tokens or of a `share` of free memory.

    torch.OutOfMemoryError where not even the weights fit.
    """
    spec = shape.spec
    parts = backend.target_parts(DTYPE, deterministic=False, is_stored_in_16_bits=True)
    weights = RandomCheckpoint(expected_tensors(spec), backend.device)
    num_positions = spec.max_position_embeddings
    model = assemble(spec, weights, TensorParallel(), parts, num_positions=num_positions)
    is_gpu = backend.device.type == "cuda"
    if is_gpu:
        torch.cuda.empty_cache()  # what stacking weights took
    free = backend.free_bytes() if is_gpu else probe().available_memory
    room = int(share * free) // kv_bytes_per_token(spec, dtype="bfloat16")
    num_blocks = 1 + min(most_slots, room) // BLOCK_SIZE
    return Runner(
        model, backend=backend, num_blocks=num_blocks, block_size=BLOCK_SIZE, deterministic=False
    )


def block_drafter_of(
    shape: Shape, backend: Backend, *, gamma: int, num_layers: int, num_context_tokens: int
) -> BlockDrafter:
    """A DSpark for the whole model, with embeddings of its own."""
    spec = read_deepspec(shape.block_config(gamma, num_layers), _NOWHERE)
    checkpoint = RandomCheckpoint(block_tensors(spec), backend.device)
    weights = DraftWeights(checkpoint, dtype=DTYPE, backend=backend, target=None)
    most = min(num_context_tokens, spec.decoder.max_position_embeddings)
    with torch.inference_mode():
        return load_dspark(weights, spec, num_context_tokens=num_context_tokens, max_positions=most)


def bytes_read(spec: ModelSpec, num_keys: int) -> int:
    """Of a forward: all weights but untied embeddings, and `num_keys` keys and values."""
    looked_up = 0 if spec.tie_word_embeddings else spec.vocab_size * spec.hidden_size
    weights = 2 * (spec.num_params - looked_up)
    return weights + num_keys * kv_bytes_per_token(spec, dtype="bfloat16")
