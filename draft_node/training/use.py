# pyright: strict
"""What to type with a drafter that was just trained. Knows no torch."""

import argparse
import shlex
from pathlib import Path

from specserve.settings.target_source import EMBEDDED_TARGET, SMOLLM2, TINY, find_smollm2

_A_DFLASH = "DFLASH"  # the folder or name of one, where nobody has said which


def commands_with(arguments: argparse.Namespace, out: str) -> tuple[str, str]:
    """To calibrate, and to serve, the drafter that a run with these flags has written to `out`."""
    target = ["--target", _name(arguments.target)]
    drafter = ["--drafter", out]
    if arguments.kind == "local-head":
        drafter = ["--drafter", str(arguments.fuse_with or _A_DFLASH), "--local-head", out]
    data = [] if arguments.data is None else ["--data", str(arguments.data)]
    return (
        shlex.join(["specserve", "calibrate", *target, *drafter, *data]),
        shlex.join(["specserve", "launch", *target, *drafter]),
    )


def _name(target: Path) -> str:
    if target == EMBEDDED_TARGET:
        return TINY
    return SMOLLM2 if target == find_smollm2() else str(target)
