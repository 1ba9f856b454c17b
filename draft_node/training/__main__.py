"""`python -m draft_node.training KIND ...`: what `specserve train` starts.

Every kind is a module with `add_options(parser)` and `run(arguments) -> int`, imported only when it
is asked for. `arguments.kind` tells kinds apart that share a module.
"""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from specserve.errors import SpecserveError
from specserve.processes.process import die_with_parent, slow_imports

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
KINDS = {
    "data": "draft_node.training.data",
    "dspark": "draft_node.training.block_drafters",
    "dflash": "draft_node.training.block_drafters",
    "eagle3": "draft_node.training.block_drafters",
    "local-head": "draft_node.training.local_head",
    "lm": "draft_node.training.language_model",
}
_USAGE_CODES = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"specserve: {message} (see {self.prog} --help)\n")


def build_parser(kind: str) -> argparse.ArgumentParser:
    """The command line of one of KINDS."""
    parser = _Parser(
        prog=f"specserve train {kind}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(kind=kind)
    importlib.import_module(KINDS[kind]).add_options(parser)
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Train one kind; 0 done, 1 failed, 2 bad usage, 130 stopped before the end."""
    words = list(sys.argv[1:] if argv is None else argv)
    kind = words.pop(0) if words else ""
    if kind not in KINDS:
        sys.stderr.write(f"specserve: kind: {kind!r} is not one of {', '.join(KINDS)}\n")
        return EXIT_USAGE
    with slow_imports():
        module = importlib.import_module(KINDS[kind])
    arguments = build_parser(kind).parse_args(words)
    arguments.words = words  # for other processes that do the same
    if arguments.parent_pid is not None:
        # A training's other processes have nothing to save, and may wait where no handler runs.
        is_companion = getattr(arguments, "process", None) is not None
        die_with_parent(arguments.parent_pid, signal.SIGKILL if is_companion else signal.SIGTERM)
    try:
        return module.run(arguments)
    except SpecserveError as error:
        sys.stderr.write(f"specserve: {error}\n")
        return EXIT_USAGE if error.code in _USAGE_CODES else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
