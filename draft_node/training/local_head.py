"""The training command `local-head`: its flags. The work is `local_head_run`'s."""

import argparse
from pathlib import Path

from draft_node.training.options import add_run_options, command_line, positive_float, positive_int

EXAMPLES = """examples:
  specserve train local-head --out drafters/local --minutes 5
  specserve train local-head --out drafters/local --fuse-with drafters/dflash
  specserve train local-head --out drafters/markov --head markov --self-text 0
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `local-head`."""
    parser.epilog = EXAMPLES
    add_run_options(parser, minutes=5.0)
    parser.add_argument(
        "--head", choices=("gru", "markov"), default="gru",
        help="what it knows of the drafted tokens: all, or the last (default: gru)",
    )  # fmt: skip
    parser.add_argument("--width", type=positive_int, default=256, help="GRU state (default: 256)")
    parser.add_argument("--rank", type=positive_int, default=64, help="of its output (default: 64)")
    parser.add_argument(
        "--through-target-head", action="store_true",
        help="a smaller GRU head, whose output weights are the target's",
    )  # fmt: skip
    parser.add_argument(
        "--window", type=positive_int, default=16, help="longest block served (default: 16)"
    )
    parser.add_argument(
        "--fuse-with", type=Path, metavar="DIR",
        help="DFlash with which alpha and beta are chosen (default: 0.3 both, unchosen)",
    )  # fmt: skip
    parser.add_argument("--tokens-per-step", type=positive_int, default=2048, help="default: 2048")
    parser.add_argument(
        "--rate", type=positive_float, default=1.0, help="factor on learning rates (default: 1)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, resume or only export again; 0 when done, 130 when stopped. Raises SpecserveError."""
    # Imports torch, which --help does not need.
    from draft_node.training.local_head_run import train

    return train(arguments, command_line(arguments, add_options))
