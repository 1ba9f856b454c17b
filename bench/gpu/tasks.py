"""The tasks in order of worth, and the process that one of them runs in.

    python -m bench.gpu.tasks NAME --out DIR --target MODEL --limit-s S [--dry]

is started by `bench.gpu`, which stops it: a device that hangs, or a compiler that does not end,
costs its own task alone. What is found goes to stdout, a line of JSON each.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.gpu import baselines, commands, drafts, steps
from bench.gpu.records import Found, Left, Report
from bench.gpu.scale import DRY, FULL, Given
from specserve.processes.process import die_with_parent


@dataclass(frozen=True)
class Kind:
    """One task. `share_s`: of 540 s; what others leave is shared out alike."""

    share_s: float
    about: str
    measure: Callable[[Given, Report], None]


TASKS = {
    "tests": Kind(120, "tests/gpu, the device against the CPU", commands.tests),
    "real": Kind(120, "services of the real model: off, sync, async, auto", commands.real),
    "steps": Kind(90, "decoding and verification of large shapes", steps.measure),
    "drafts": Kind(35, "blocks of DSpark shapes, by length and fan-out", drafts.measure),
    "side_by_side": Kind(55, "a draft process by turns and beside", commands.side_by_side),
    "baselines": Kind(40, "transformers on the same shapes", baselines.measure),
    "drafters": Kind(80, "chats of the real model, and a drafter trained", commands.drafters),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run one; 0, or 1 after what broke it was reported."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.tasks", description=__doc__)
    parser.add_argument("name", choices=TASKS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args(words)
    die_with_parent(arguments.parent_pid)
    ends_s = time.monotonic() + arguments.limit_s
    found = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not end up among what is found

    def report(each: Found) -> None:
        found.write(msgspec.json.encode(each).decode() + "\n")
        found.flush()

    scale = DRY if arguments.dry else FULL
    try:
        given = Given(scale, arguments.out, arguments.target, ends_s)
        TASKS[arguments.name].measure(given, report)
    except KeyboardInterrupt:  # it ran over
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it is, what was found is kept
        traceback.print_exc()
        report(Left(what=arguments.name, why=f"{type(error).__name__}: {str(error)[:300]}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
