# pyright: strict
"""To come."""

import argparse

HELP = "continue a prompt"
EXAMPLES = ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """To come."""


def run(arguments: argparse.Namespace) -> int:
    """To come."""
    return 0
