# pyright: strict
"""The flags that all kinds of training share, and what a flag's value may be. Knows no torch."""

import argparse
import os
from pathlib import Path
from typing import TypeVar

from specserve.target_source import EMBEDDED_TARGET

T = TypeVar("T", int, float)


def add_run_options(parser: argparse.ArgumentParser, minutes: float = 15.0) -> None:
    """What to train for, on what, for how long (`minutes` by default)."""
    parser.add_argument(
        "--target", type=Path, default=EMBEDDED_TARGET, metavar="DIR",
        help="folder of the target (default: the embedded one)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=positive_float, default=minutes,
        help=f"active training time (default: {minutes:g})",
    )  # fmt: skip
    budget.add_argument(
        "--steps", type=positive_int, metavar="N",
        help="updates instead of minutes: the same run on any machine",
    )  # fmt: skip
    parser.add_argument(
        "--text", type=Path, metavar="PATH",
        help="a text file, or a folder of them (default: the corpus of the Python installation)",
    )  # fmt: skip
    parser.add_argument(
        "--self-text", type=share, default=0.5, metavar="SHARE",
        help="share of the rows that the target writes itself, 0..1 (default: 0.5)",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, metavar="DIR",
        help="folder of streams and checkpoints (default: below ~/.cache/specserve)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument(
        "--threads", type=positive_int, default=os.cpu_count() or 1, help="CPU threads"
    )
    parser.add_argument(
        "--restart", action="store_true", help="forget an unfinished run instead of resuming it"
    )


def work_folder(arguments: argparse.Namespace) -> Path:
    """--work, or the folder in which the target's streams are kept by default."""
    if arguments.work is not None:
        return arguments.work
    cache = Path.home() / ".cache" / "specserve"
    target: Path = arguments.target.resolve()
    return cache / "embedded" if target == EMBEDDED_TARGET else cache / "train" / target.name


def budget_words(arguments: argparse.Namespace) -> list[str]:
    """How long a run was told to take, as words of its command line."""
    if arguments.steps is not None:
        return ["--steps", str(arguments.steps)]
    return ["--minutes", f"{arguments.minutes:g}"]


def positive_int(text: str) -> int:
    """For argparse: an integer above 0."""
    return _checked(text, int(text) if text.isdecimal() else 0, "a positive whole number")


def positive_float(text: str) -> float:
    """For argparse: a number above 0."""
    return _checked(text, _number(text), "a positive number")


def share(text: str) -> float:
    """For argparse: a number in 0..1."""
    number = _number(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _checked(text: str, number: T, kind: str) -> T:
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")
    return number
