"""What every kind of reference case needs: the folder, the comparisons, a target to run."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from specserve.backends.choose import choose_backend
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from tests.backends.chosen import BACKEND

FIXTURES = Path(__file__).parent / "fixtures" / "golden"
TOLERANCE = 5e-5
PROBABILITY_TOLERANCE = 1e-5
BLOCK_SIZE = 16


class NotACase(Exception):
    """The folder cannot be run as a reference case."""


@dataclass(frozen=True)
class Comparison:
    """One tensor: `error` is the largest absolute difference, infinite where shapes differ."""

    name: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance


@dataclass
class Case:
    """A folder, its expected tensors, and what has been compared so far."""

    folder: Path
    expected: dict[str, torch.Tensor]
    comparisons: list[Comparison] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)

    def input(self, name: str) -> torch.Tensor:
        """A tensor that the comparison reads instead of checking."""
        self.inputs.add(name)
        return self.expected[name]

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_bytes())

    def check(self, name: str, actual: torch.Tensor, tolerance: float = TOLERANCE) -> None:
        """Compare if the case expects `name` at all."""
        if name in self.expected:
            self.compare(name, actual, tolerance)

    def compare(self, name: str, actual: torch.Tensor, tolerance: float = TOLERANCE) -> None:
        """Record the error of `name`; integers have to match exactly."""
        expected = self.expected[name]
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            error = float("inf")
        else:
            error = (actual.double() - expected.double()).abs().max().item()
        exact = not expected.dtype.is_floating_point
        self.comparisons.append(Comparison(name, error, 0.0 if exact else tolerance))

    def uncovered(self) -> set[str]:
        """Expected tensors that nothing compared: a hole in the comparison, hence a failure."""
        return self.expected.keys() - {c.name for c in self.comparisons} - self.inputs


class Session:
    """One sequence through a target and our paged attention."""

    def __init__(self, target: Transformer, max_len: int) -> None:
        self.target = target
        self.length = 0
        num_blocks = -(-max_len // BLOCK_SIZE)
        self.block_table = np.arange(1, num_blocks + 1)  # block 0 is the null block
        self.passes = BACKEND.make_forward(
            target, num_blocks=num_blocks + 1, block_size=BLOCK_SIZE, deterministic=True
        )

    def feed(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Append tokens [N]: final hidden states [N, H] and the tapped residuals."""
        self.length += len(token_ids)
        counts, lengths = np.array([len(token_ids)]), np.array([self.length])
        self.passes.plan(AttentionBatch(counts, lengths, [self.block_table]))
        return self.passes.run(token_ids, taps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.target.logits(hidden)
        assert logits is not None, "a single rank has the logits"
        return logits

    @torch.inference_mode()
    def keys_and_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache holds of the sequence, each [kv_heads, length, head_dim]."""
        keys, values = self.passes.cache.read(layer, torch.from_numpy(self.block_table))
        return keys[:, : self.length], values[:, : self.length]


def load_target(folder: Path) -> Transformer:
    """With logits of the padding of its vocabulary, which a reference has, too."""
    target = load_model(
        folder,
        dtype=torch.float32,
        backend=choose_backend(torch.device("cpu")),
        parallel=TensorParallel(),
        deterministic=True,
    )
    target.config = replace(target.config, tokenizer_size=None)
    return target


def find_target(case: Path) -> Path:
    """The folder of the target that a draft case names: beside the case, else among fixtures."""
    with safe_open(case / "io.safetensors", framework="pt") as file:
        name = (file.metadata() or {}).get("target")
    if not name:
        raise NotACase(f"{case}: io.safetensors names no target in its metadata")
    for folder in (case.resolve().parent / name, FIXTURES / name):
        if (folder / "config.json").is_file():
            return folder
    raise NotACase(f"{case}: target {name} is neither beside it nor in {FIXTURES}")
