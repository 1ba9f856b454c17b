"""Compare our forward pass with the tensors of a reference case.

    python -m tests.golden DIR

DIR holds config.json, model.safetensors and io.safetensors (inputs and expected outputs), or the
last alone: a training step of another case's drafter, or calibration. Prints the largest error of
every tensor. Exit code 0: all within tolerance; 1: some are not; 2: not a case that can be run.
`CASES` maps an architecture to its comparison; a new kind is one more entry.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from specserve.errors import SpecserveError
from specserve.models.config import ARCHITECTURES
from tests.golden_blocks import compare_block_drafter, compare_gemma4_drafter
from tests.golden_calibration import compare_calibration, is_calibration
from tests.golden_case import FIXTURES, Case, Comparison, NotACase, Session, find_target
from tests.golden_chains import compare_eagle3, compare_local_head
from tests.golden_target import compare_target
from tests.golden_training import compare_training_step, weights_of

__all__ = ["CASES", "FIXTURES", "NotACase", "Session", "find_target", "main", "run_case"]

USAGE = "usage: python -m tests.golden DIR\n"
LOCAL_HEAD = "a DeLS local head"  # whose config names no architecture
CASES: dict[str, Callable[[Case], None]] = {
    **dict.fromkeys(ARCHITECTURES, compare_target),
    "Qwen3DSparkModel": compare_block_drafter,
    "DFlashDraftModel": compare_block_drafter,
    "DSparkSpeculator": compare_block_drafter,
    "Gemma4DSparkModel": compare_gemma4_drafter,
    **dict.fromkeys(("Qwen3Eagle3Model", "Eagle3DraftModel"), compare_eagle3),
    "LlamaForCausalLMEagle3": compare_eagle3,
    LOCAL_HEAD: compare_local_head,
}


def case_kind(path: Path) -> str:
    """The architecture that a config.json names; dispatch is on content, not on folder names."""
    try:
        config = json.loads(path.read_bytes())
        if "architectures" not in config and "low_rank_dim" in config:
            return LOCAL_HEAD
        return str(config["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise NotACase(f"{path}: architectures: names no model ({error!r})") from error


def read_expected(folder: Path) -> dict[str, torch.Tensor]:
    """Inputs and expected outputs of a case."""
    path = folder / "io.safetensors"
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise NotACase(f"{path}: cannot be read: {error}") from error


def run_case(folder: Path) -> list[Comparison]:
    """All comparisons of one case. Raises `NotACase` for what cannot be run."""
    if (folder / "io.safetensors").is_file() and not (folder / "config.json").exists():
        return _run_without_model(folder)
    for name in ("config.json", "model.safetensors", "io.safetensors"):
        if not (folder / name).is_file():
            raise NotACase(f"{folder}: {name} is missing")
    kind = case_kind(folder / "config.json")
    comparison = CASES.get(kind)
    if comparison is None:
        raise NotACase(f"{folder}: cases of {kind} cannot be run, only {', '.join(CASES)}")
    case = Case(folder, read_expected(folder))
    comparison(case)
    return _results(case)


def _run_without_model(folder: Path) -> list[Comparison]:
    case = Case(folder, read_expected(folder))
    if (drafter := weights_of(folder)) is not None:
        compare_training_step(case, drafter)
    elif is_calibration(case):
        compare_calibration(case)
    else:
        raise NotACase(
            f"{folder}: config.json is missing, and io.safetensors is neither a training step "
            "(its metadata name no weights) nor calibration (it has no accept_prefix_mask)"
        )
    return _results(case)


def _results(case: Case) -> list[Comparison]:
    """What was compared, and what should have been."""
    holes = [Comparison(f"{name} (not compared)", float("inf"), 0.0) for name in case.uncovered()]
    return case.comparisons + sorted(holes, key=lambda hole: hole.name)


def main(arguments: list[str]) -> int:
    if any(word in ("-h", "--help") for word in arguments):
        sys.stdout.write(USAGE)
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
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
