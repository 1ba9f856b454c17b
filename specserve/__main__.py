"""The `specserve` command, also as `python -m specserve`."""

import signal
import sys

from specserve.processes.standard_streams import prepare_streams
from specserve.processes.stop_signals import (
    ends_at_once,
    exit_when_stopped,
    heard_stops,
    ignore_stops,
)

EXIT_STOPPED = 0
EXIT_INTERRUPTED = 130  # as shells report SIGINT


def main() -> int:
    """The exit code; Ctrl-C is one even while modules are still being imported."""
    prepare_streams()
    return _launch() if sys.argv[1:2] in (["launch"], ["draft"]) else _main()


def _launch() -> int:
    """For a service a stop is a good end, however early or late it comes."""
    exit_when_stopped(EXIT_STOPPED)  # first: there is no moment without one of the two
    with ends_at_once(heard_stops(), EXIT_STOPPED):
        from specserve import cli
    try:
        return cli.main()
    finally:
        ignore_stops()


def _main() -> int:
    is_heard = signal.getsignal(signal.SIGINT) != signal.SIG_IGN  # not in a shell's background
    with ends_at_once([signal.SIGINT] if is_heard else [], EXIT_INTERRUPTED):
        from specserve import cli
    try:
        return cli.main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
