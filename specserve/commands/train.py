# pyright: strict
"""`specserve train`: hand the command line to the training process, and signals with it.

Training lives with the draft node, which this package never imports; the process is started by
module name. It parses and checks its own flags.
"""

import argparse
import os
import signal
import subprocess
import sys
from types import FrameType

from specserve.errors import InvalidField

HELP = "train a drafter for a target, or write the chats to train it on"
EXAMPLES = """examples:
  specserve train data --out chats --tokens 1000000              chats that the target writes
  specserve train dspark --out drafters/dspark --minutes 15      for the embedded target
  specserve train dspark --out drafters/gap --init drafters/dspark --max-gap 8 --minutes 10
  specserve train dflash --target ./Qwen3-0.6B --out drafters/dflash --text ./documents
  specserve train eagle3 --out drafters/eagle3 --steps 1500      so many steps on any machine
  specserve train local-head --out drafters/local --minutes 5    a head beside a DFlash
  specserve train lm --out drafters/lm --minutes 15              a small language model
  specserve train dspark --help                                  the flags of a kind
"""
KINDS = ("data", "dspark", "dflash", "eagle3", "local-head", "lm")
MODULE = "draft_node.training"
_SIGNAL_EXIT = 128  # shells add the number of the signal that ended a command


def add_options(parser: argparse.ArgumentParser) -> None:
    """The kind; everything behind it is the kind's own."""
    # "?": else argparse would ask for the flags, too, and name no kind.
    parser.add_argument("kind", nargs="?", choices=KINDS, help="what to train; its flags follow")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Train; the exit code is the training's: 0 done, 1 failed, 2 bad usage, 130 stopped.

    Raises InvalidField without a kind.
    """
    if arguments.kind is None:
        raise InvalidField("kind", f"is missing; type specserve train {'|'.join(KINDS)}")
    # -P: the working folder must not shadow any module.
    words = [sys.executable, "-P", "-m", MODULE, arguments.kind, *arguments.flags]
    # A session of its own: Ctrl-C reaches it once, through here.
    process = subprocess.Popen(
        [*words, "--parent-pid", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    handled = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, forward) for number in handled}
    try:
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else _SIGNAL_EXIT - status
