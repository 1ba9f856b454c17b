"""The `specserve` command, also as `python -m specserve`."""

import sys

EXIT_INTERRUPTED = 130  # as shells report SIGINT


def main() -> int:
    """The exit code; Ctrl-C is one even while modules are still being imported."""
    try:
        from specserve import cli

        return cli.main()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
