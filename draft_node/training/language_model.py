"""The training command `lm`: its flags. The work is `language_model_run`'s."""

import argparse
from pathlib import Path

from draft_node.training.options import (
    add_keep_option,
    add_run_options,
    add_size_options,
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
  specserve train lm --target smollm2 --out drafters/small --data chats --cut 0 14 29 \\
    --draft-vocab 8192 --distill 1 --device cuda
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `lm`."""
    parser.epilog = EXAMPLES
    add_run_options(parser)
    # No defaults of shapes: with --init and --cut they are those of what is gone on from.
    for flag, usual, what in (
        ("--layers", 2, "decoder layers"),
        ("--hidden", 128, "width"),
        ("--intermediate", 384, "width of the feed-forward blocks"),
        ("--heads", 4, "attention heads"),
        ("--kv-heads", 2, "key-value heads"),
        ("--head-dim", 32, "width of a head"),
    ):
        parser.add_argument(flag, type=positive_int, help=f"{what} (default: {usual})")
    parser.add_argument("--tokens-per-step", type=positive_int, default=8192, help="default: 8192")
    parser.add_argument(
        "--distill", type=share, default=0.0, metavar="SHARE",
        help="share of the loss that is told by the target's distributions, 0..1 (default: 0); a "
        "step then "
        "takes two or three times as long, which pays late rather than early",
    )  # fmt: skip
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--init", type=Path, metavar="DIR", help="model to go on from, in its shape")
    start.add_argument(
        "--cut", type=int, nargs="+", metavar="LAYER",
        help="start as these layers of the target, their feed-forward blocks narrowed to "
        "--intermediate (default: as wide as there); embedding and output head are the target's, "
        "and are neither trained nor stored",
    )  # fmt: skip
    parser.add_argument(
        "--own-embeddings", action="store_true",
        help="with --cut: train and store an embedding and an output head, too",
    )  # fmt: skip
    add_size_options(parser)
    add_keep_option(parser)
    parser.add_argument(
        "--rate", type=positive_float, default=1.0, help="factor on learning rates (default: 1)"
    )
    parser.add_argument("--compile", action="store_true", help="compile the step")


def run(arguments: argparse.Namespace) -> int:
    """Train, resume or only export again; 0 when done, 130 when stopped. Raises SpecserveError."""
    # Imports torch, which --help does not need.
    from draft_node.training.language_model_run import train

    return train(arguments, command_line(arguments, add_options))
