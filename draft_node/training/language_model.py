"""The training command `lm`: its flags. The work is `language_model_run`'s."""

import argparse
from pathlib import Path

from draft_node.training.options import (
    add_run_options,
    command_line,
    positive_float,
    positive_int,
    share,
)

EXAMPLES = """examples:
  specserve train lm --out drafters/lm --minutes 15
  specserve train lm --out drafters/lm --layers 3 --hidden 192
  specserve train lm --out drafters/told --init drafters/lm --distill 1 --minutes 5
  specserve train lm --out drafters/cut --cut 0 2 4 --intermediate 448 --distill 1
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `lm`."""
    parser.epilog = EXAMPLES
    add_run_options(parser)
    for flag, default, what in (
        ("--layers", 2, "decoder layers"),
        ("--hidden", 128, "width"),
        ("--intermediate", 384, "width of the feed-forward blocks"),
        ("--heads", 4, "attention heads"),
        ("--kv-heads", 2, "key-value heads"),
        ("--head-dim", 32, "width of a head"),
        ("--tokens-per-step", 8192, "tokens of one update"),
    ):
        parser.add_argument(
            flag, type=positive_int, default=default, help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--distill", type=share, default=0.0, metavar="SHARE",
        help="share of the loss that is told by the target's distributions, 0..1 (default: 0); a "
        "step then "
        "takes two or three times as long, which pays late rather than early",
    )  # fmt: skip
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--init", type=Path, metavar="DIR", help="model of the same shape to go on from"
    )
    start.add_argument(
        "--cut", type=int, nargs="+", metavar="LAYER",
        help="start as these layers of the target, their feed-forward blocks narrowed to "
        "--intermediate; --layers, --hidden and the heads are then the target's",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=positive_float, default=1.0, help="factor on learning rates (default: 1)"
    )
    parser.add_argument("--compile", action="store_true", help="compile the step")


def run(arguments: argparse.Namespace) -> int:
    """Train, resume or only export again; 0 when done, 130 when stopped. Raises SpecserveError."""
    # Imports torch, which --help does not need.
    from draft_node.training.language_model_run import train

    return train(arguments, command_line(arguments, add_options))
