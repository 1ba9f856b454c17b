"""The training commands `dspark`, `dflash` and `eagle3`: their flags. The work is `block_run`'s."""

import argparse
from pathlib import Path

from draft_node.training.options import (
    add_keep_option,
    add_run_options,
    add_size_options,
    command_line,
    positive_float,
    positive_int,
    whole_number,
)

EXAMPLES = """examples:
  specserve train dspark --out drafters/dspark --minutes 15
  specserve train dspark --out drafters/gap --minutes 10 --init drafters/dspark --max-gap 8
  specserve train dspark --target ./Qwen3-0.6B --out drafters/own --text ./documents --device cuda
  specserve train dflash --out drafters/dflash --layers 2 --steps 2000
  specserve train eagle3 --out drafters/eagle3 --gamma 7 --minutes 15
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of the kind that is the parser's default for `kind`."""
    parser.epilog = EXAMPLES
    add_run_options(parser)
    # No defaults of shapes: with --init, what is not asked for is as it was.
    kind = parser.get_default("kind")
    what = (
        "steps that are unrolled, and tokens drafted" if kind == "eagle3" else "tokens of a block"
    )
    parser.add_argument(
        "--gamma", type=whole_number(1, 64), metavar="1..64", help=f"{what} (default: 7)"
    )
    parser.add_argument(
        "--feature-layers", type=_layers, metavar="I,J,...",
        help="target layers whose outputs are read (default: by the target's depth)",
    )  # fmt: skip
    if kind != "eagle3":
        parser.add_argument("--layers", type=positive_int, help="draft layers (default: 2)")
        parser.add_argument(
            "--mask-token-id",
            type=int,
            help="id of open slots (default: the tokenizer's mask, or a spare one)",
        )
    if kind == "dspark":
        _add_heads(parser)
    parser.add_argument(
        "--max-gap", type=whole_number(0, 64), default=0, metavar="0..64",
        help="train behind up to so many tokens without features (default: 0)",
    )  # fmt: skip
    parser.add_argument("--init", type=Path, metavar="DIR", help="drafter to go on from")
    add_size_options(parser)
    add_keep_option(parser)
    parser.add_argument(
        "--anchors", type=positive_int, default=32,
        help="blocks in 256 tokens, at most 256 less gamma (default: 32)",
    )  # fmt: skip
    parser.add_argument("--tokens-per-step", type=positive_int, default=2048, help="default: 2048")
    parser.add_argument(
        "--rate", type=positive_float, help="factor on learning rates (default: 1, with --init 0.5)"
    )
    parser.add_argument("--compile", action="store_true", help="compile the step")


def _add_heads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--markov", choices=("vanilla", "gated", "rnn", "none"),
        help="kind of the Markov head (default: vanilla)",
    )  # fmt: skip
    parser.add_argument("--rank", type=positive_int, help="of the Markov head (default: 64)")
    parser.add_argument(
        "--confidence", choices=("markov", "hidden", "none"),
        help="what the confidence head reads besides the hidden state (default: markov)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Train, resume or only export again; 0 when done, 130 when stopped. Raises SpecserveError."""
    # Imports torch, which --help does not need.
    from draft_node.training.block_run import train

    return train(arguments, command_line(arguments, add_options))


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1,2,3") from None
