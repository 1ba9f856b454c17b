# pyright: strict
"""To come."""

import argparse

HELP = "show a service, or this machine and the embedded model"
EXAMPLES = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """To come."""


def run(arguments: argparse.Namespace) -> int:
    """To come."""
    return 0
