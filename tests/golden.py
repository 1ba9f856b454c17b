"""Compare our forward pass with the tensors of a reference case.

    python -m tests.golden DIR

DIR holds config.json, model.safetensors and io.safetensors (inputs and expected outputs). Prints
the largest error of every tensor. Exit code 0: all within tolerance; 1: some are not; 2: not a case
that can be run. `CASES` maps an architecture to its comparison; a new kind is one more entry.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from specserve.errors import SpecserveError
from specserve.model.attention import AttentionBatch, TorchAttention
from specserve.model.config import ARCHITECTURES
from specserve.model.kv_cache import KVCache
from specserve.model.loader import load_model
from specserve.model.parallel import TensorParallel
from specserve.model.rope import RotaryTable, inverse_frequencies
from specserve.model.transformer import Transformer

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
        spec, num_ranks = target.config, target.parallel.size
        self.target = target
        self.length = 0
        num_blocks = -(-max_len // BLOCK_SIZE)
        self.block_table = np.arange(1, num_blocks + 1)  # block 0 is the null block
        self.cache = KVCache(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads // num_ranks,
            head_dim=spec.head_dim,
            num_blocks=num_blocks + 1,
            block_size=BLOCK_SIZE,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        num_heads = spec.num_heads // num_ranks
        self.attention = TorchAttention(self.cache, num_heads=num_heads, deterministic=True)

    def feed(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Append tokens [N]: final hidden states [N, H] and the tapped residuals."""
        start, self.length = self.length, self.length + len(token_ids)
        counts, lengths = np.array([len(token_ids)]), np.array([self.length])
        self.attention.plan(AttentionBatch(counts, lengths, [self.block_table]))
        positions = torch.arange(start, self.length)
        return self.target.forward(token_ids, positions, self.attention, taps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.target.logits(hidden)
        assert logits is not None, "a single rank has the logits"
        return logits

    def keys_and_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache holds of the sequence, each [kv_heads, length, head_dim]."""
        blocks = self.cache.flat_blocks(torch.from_numpy(self.block_table))
        keys, values = self.cache.gather(layer, blocks)
        return keys[:, : self.length], values[:, : self.length]


def load_target(folder: Path) -> Transformer:
    return load_model(
        folder,
        dtype=torch.float32,
        device=torch.device("cpu"),
        parallel=TensorParallel(),
        deterministic=True,
    )


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


def compare_target(case: Case) -> None:
    """Forward of a whole prompt, its caches, taps and rotary tables, then greedy decoding."""
    target = load_target(case.folder)
    spec = target.config
    prompt = case.input("prompt_ids")
    continuation = case.expected["greedy_continuation"]
    session = Session(target, len(prompt) + len(continuation))

    taps = tuple(range(-1, spec.num_layers))
    hidden, tapped = session.feed(prompt, taps)
    logits = session.logits(hidden)
    for i in range(spec.num_layers):
        case.compare(f"hidden_states.{i}", tapped[i])
    case.compare(f"hidden_states.{spec.num_layers}", hidden)
    case.compare("last_layer_raw", tapped[-1])
    case.compare("logits", logits)
    case.compare("greedy_next_ids", logits.argmax(-1))
    for name in sorted(case.expected):
        if name.startswith("kv.") and name.endswith(".k"):
            layer = int(name.split(".")[1])
            keys, values = session.keys_and_values(layer)
            case.compare(f"kv.{layer}.k", keys)
            case.compare(f"kv.{layer}.v", values)
    case.compare("greedy_continuation", greedy(session, logits[-1], len(continuation)))
    compare_rope(case, target)


def greedy(session: Session, logits: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Decode one token at a time from the logits [V] of the last prompt token: [num_tokens]."""
    token_ids: list[int] = []
    while len(token_ids) < num_tokens:
        token_ids.append(int(logits.argmax()))
        hidden, _ = session.feed(torch.tensor(token_ids[-1:]))
        logits = session.logits(hidden)[-1]
    return torch.tensor(token_ids)


def compare_rope(case: Case, target: Transformer) -> None:
    spec = target.config
    num_positions = len(case.expected["rope_cos"])
    table = RotaryTable(
        spec.rope,
        head_dim=spec.head_dim,
        num_positions=num_positions,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cos, signed_sin = (part[:, 0] for part in table.at(torch.arange(num_positions)))
    sign = torch.ones(spec.head_dim)
    sign[: spec.head_dim // 2] = -1
    case.compare("rope_inv_freq", inverse_frequencies(spec.rope, spec.head_dim))
    case.compare("rope_cos", cos)
    case.compare("rope_sin", signed_sin * sign)


CASES: dict[str, Callable[[Case], None]] = dict.fromkeys(ARCHITECTURES, compare_target)


def case_kind(path: Path) -> str:
    """The architecture that a config.json names; dispatch is on content, not on folder names."""
    try:
        config = json.loads(path.read_bytes())
        return str(config["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NotACase(f"{path}: architectures: names no model ({error!r})") from error


def run_case(folder: Path) -> list[Comparison]:
    """All comparisons of one case. Raises `NotACase` for what cannot be run."""
    for name in ("config.json", "model.safetensors", "io.safetensors"):
        if not (folder / name).is_file():
            raise NotACase(f"{folder}: {name} is missing")
    kind = case_kind(folder / "config.json")
    comparison = CASES.get(kind)
    if comparison is None:
        raise NotACase(f"{folder}: cases of {kind} cannot be run, only {', '.join(CASES)}")
    case = Case(folder, load_file(folder / "io.safetensors"))
    comparison(case)
    holes = [Comparison(f"{name} (not compared)", float("inf"), 0.0) for name in case.uncovered()]
    return case.comparisons + sorted(holes, key=lambda hole: hole.name)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tests.golden DIR\n")
        return 2
    torch.set_num_threads(1)
    try:
        comparisons = run_case(Path(arguments[0]))
    except (NotACase, SpecserveError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for item in comparisons:
        verdict = "ok" if item.passed else "FAILED"
        sys.stdout.write(f"{item.name:24} {item.error:10.2e}  <= {item.tolerance:.0e}  {verdict}\n")
    failed = sum(not item.passed for item in comparisons)
    sys.stdout.write(
        f"{len(comparisons) - failed} of {len(comparisons)} tensors within tolerance\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
