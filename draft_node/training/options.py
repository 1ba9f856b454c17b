# pyright: strict
"""The flags that all kinds of training share, and what a flag's value may be. Knows no torch."""

import argparse
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from specserve.errors import InvalidField
from specserve.settings.target_source import (
    EMBEDDED_TARGET,
    SMOLLM2,
    TINY,
    find_smollm2,
    locate_model,
)

T = TypeVar("T", int, float)

_MOST_SEED = 2**32 - 1  # a step draws from 2**32 * seed + step, which has 64 bits
# Not what a run is, or written in a way of its own: how long, and the folder.
_NOT_IN_COMMAND = ("kind", "minutes", "steps", "out", "work", "threads", "restart", "parent_pid",
                   "processes", "process", "meeting", "words", "keep_outputs")  # fmt: skip


def add_run_options(parser: argparse.ArgumentParser, minutes: float = 15.0) -> None:
    """What to train for, on what, for how long (`minutes` by default)."""
    parser.add_argument(
        "--target", type=_model, default=EMBEDDED_TARGET, metavar="MODEL",
        help="folder, .gguf file, hub id, smollm2 or tiny (default: tiny)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=positive_float, default=minutes,
        help=f"active training time (default: {minutes:g})",
    )  # fmt: skip
    budget.add_argument(
        "--steps", type=positive_int, metavar="N",
        help="updates instead of minutes: the same run on any machine, if it is begun with them "
        "(one that goes on to more has other rates than one of so many at once)",
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
        "--self-tokens", type=positive_int, default=600_000,
        help="tokens that the target writes, once, and no more than are read; of each domain "
        "rounded up to rows of 512, and beyond 65536 to as many (default: 600000)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="chats that `specserve train data` wrote, of which answers are learned; instead of "
        "text and of what the target would write behind it",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, metavar="DIR",
        help="folder of streams and checkpoints (default: below ~/.cache/specserve)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number(0, _MOST_SEED), default=0, metavar="N",
        help=f"of all that is drawn, 0..{_MOST_SEED} (default: 0)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument(
        "--threads", type=positive_int, default=os.cpu_count() or 1, help="CPU threads"
    )
    parser.add_argument(
        "--processes", type=positive_int, default=1, metavar="N",
        help="processes that share every step, on GPUs one each (default: 1)",
    )  # fmt: skip
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--restart", action="store_true",
        help="forget the run that was begun into --out, finished or not, instead of resuming it",
    )  # fmt: skip


def add_keep_option(parser: argparse.ArgumentParser) -> None:
    """Whether what the target gives is kept, for kinds that learn from it."""
    parser.add_argument(
        "--keep-outputs", action="store_true",
        help="with --data: keep what the target gives for every token in --work, instead of "
        "computing it in every epoch (2 bytes for each of its --feature-layers and one more, times "
        "its width; what another drafter kept is shared)",
    )  # fmt: skip


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """What makes a drafter smaller than its shape."""
    parser.add_argument(
        "--draft-vocab", type=positive_int, metavar="N",
        help="draft only the N most frequent tokens of the text that is learned; the output head, "
        "which is then a part of the target's, is read and trained faster (default: all tokens)",
    )  # fmt: skip
    parser.add_argument(
        "--store-bits", type=int, choices=(8, 16), default=16,
        help="bits of a stored weight; with 8, every 64 weights share a scale (default: 16)",
    )  # fmt: skip


def _model(name: str) -> Path:
    """For argparse: a path as it was typed, which the drafter's card repeats; else as located."""
    if name not in (SMOLLM2, TINY) and Path(name).exists():
        return Path(name)
    try:
        return locate_model(name, "--target")
    except InvalidField as error:
        raise argparse.ArgumentTypeError(error.problem) from error


def work_folder(arguments: argparse.Namespace) -> Path:
    """--work, or the folder in which the target's streams are kept by default."""
    if arguments.work is not None:
        return arguments.work
    cache = Path.home() / ".cache" / "specserve"
    target: Path = arguments.target.resolve()
    return cache / "embedded" if target == EMBEDDED_TARGET else cache / "train" / target.name


def command_line(
    arguments: argparse.Namespace, add_options: Callable[[argparse.ArgumentParser], None]
) -> str:
    """The command that gives this run, with every flag of the kind that is not by default."""
    parser = argparse.ArgumentParser()
    parser.set_defaults(kind=arguments.kind)
    add_options(parser)
    budget = "minutes" if arguments.steps is None else "steps"
    words = ["specserve", "train", arguments.kind]
    words += [f"--{budget}", *_words(getattr(arguments, budget))]
    for name, value in vars(arguments).items():
        if name not in _NOT_IN_COMMAND and value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", *_words(value)]
    return shlex.join([*words, "--out", arguments.out.name])


def _words(value: object) -> list[str]:
    """A flag's value as it is written behind it."""
    match value:
        case True:
            return []
        case float():
            return [f"{value:.12g}"]
        case list():
            return [str(part) for part in cast("list[object]", value)]
        case tuple():
            return [",".join(str(part) for part in cast("tuple[object, ...]", value))]
        case Path():
            return [SMOLLM2 if value == find_smollm2() else str(value)]
        case _:
            return [str(value)]


def check_feature_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raises InvalidField for layers that a target of so many has not, or has enough of once."""
    name = ",".join(map(str, layers))
    if not all(-1 <= layer < num_layers for layer in layers):
        problem = f"{name}: the target has layers 0..{num_layers - 1}, and -1 is its embedding"
        raise InvalidField("--feature-layers", problem)
    if len(set(layers)) < len(layers) < num_layers:
        raise InvalidField("--feature-layers", f"{name}: a layer comes twice; name each once")


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """For argparse: an integer in least..most."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= (number := int(text)) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number in {least}..{most}")
        return number

    return parse


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
