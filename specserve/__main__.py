"""The `specserve` command, also as `python -m specserve`."""

import sys

from specserve.stop_signals import exit_when_stopped, ignore_stops

EXIT_STOPPED = 0
EXIT_INTERRUPTED = 130  # as shells report SIGINT


def main() -> int:
    """The exit code; Ctrl-C is one even while modules are still being imported."""
    return _launch() if sys.argv[1:2] == ["launch"] else _main()


def _launch() -> int:
    """For a service a stop is a good end, however early or late it comes."""
    exit_when_stopped(EXIT_STOPPED)
    try:
        return _main()
    finally:
        ignore_stops()


def _main() -> int:
    try:
        from specserve import cli

        return cli.main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
