"""How often a test of faults repeats them: a tenth in `make test`, in full in `make test-long`."""

# pyright: strict

import os

LONG_VARIABLE = "SPECSERVE_LONG_TESTS"


def is_long() -> bool:
    """Whether the full counts are wanted."""
    return os.environ.get(LONG_VARIABLE) == "1"


def scaled(full: int, least: int = 1) -> int:
    """`full` in a long run; otherwise a tenth of it, and no fewer than `least`."""
    return full if is_long() else max(least, full // 10)
