# pyright: strict
"""What a bench measures where nobody says it: by the target, as `specserve launch` chooses that."""

from collections.abc import Sequence
from pathlib import Path

from specserve.settings.sizes import parse_count
from specserve.settings.target_source import EMBEDDED_TARGET

TARGET_HELP = "folder, .gguf file, hub id, smollm2 or tiny (default: smollm2 if installed)"
NO_BALLAST = "none"


def default_ballasts(target: Path, of_tiny: Sequence[str]) -> tuple[str, ...]:
    """Only the tiny model has to be padded to cost what a model costs."""
    return tuple(of_tiny) if target == EMBEDDED_TARGET else (NO_BALLAST,)


def num_params(ballast: str) -> int:
    """0 for none. Raises InvalidField."""
    return 0 if ballast == NO_BALLAST else parse_count(ballast, "--ballast")
