# pyright: strict
"""All that one GPU is asked while it is there, in order of worth, within nine minutes.

    python -m bench.gpu --out DIR                         on a machine with a GPU
    python -m bench.gpu --out DIR --tasks steps drafts    some of it; others' time is theirs
    python -m bench.gpu --out DIR --limit-s 240           less of everything
    python -m bench.gpu --out /tmp/dry --dry              every step on a CPU, with tiny shapes

Every task is a process with a limit of its own: one that runs over is stopped, its processes too,
and the next begins. results.json and report.md in --out are written again whenever something is
found, so that a run which is killed has left what it had. What steps and drafts took goes on to
`python -m bench.simulate --parts DIR/results.json`. Exits with 1 where a task failed, and dry where
any step was left out.
"""

import argparse
import importlib.metadata
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.gpu import children
from bench.gpu.records import Found, Left, Results, Task, heading, tables
from bench.gpu.tasks import TASKS
from bench.machine import describe_machine
from bench.writing import make_results_folder, show_failure, write_results, write_tables
from specserve.errors import InvalidField, SpecserveError
from specserve.processes.stop_signals import stops_unwind
from specserve.settings.hardware import probe
from specserve.settings.target_source import SMOLLM2, TINY, find_smollm2, locate_target

_NAME = "bench.gpu"
_LIMIT_S, _LEAST_S, _MOST_S = 530.0, 20.0, 3600.0
_DRY_LIMIT_S = 900.0  # for a busy machine: it ends when every step has run
_LATE_S = 8.0  # that a task which was to stop has, before it is stopped
_DRIVER = Path("/proc/driver/nvidia/version")
_LIBRARIES = ("triton", "flashinfer-python", "nvidia-nccl-cu13")


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    about = "\n".join(f"  {name:10} {kind.about}" for name, kind in TASKS.items())
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description=f"{__doc__}\ntasks:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--out", type=Path, required=True, metavar="DIR", help="results.json and report.md go there"
    )
    add("--tasks", nargs="+", metavar="TASK", default=list(TASKS), help="default: all of them")
    add("--target", metavar="MODEL",
        help=f"the real model (default: {SMOLLM2} if installed; else {TINY}, as dry)")  # fmt: skip
    add("--limit-s", type=float, metavar="N",
        help=f"seconds in all (default: {_LIMIT_S:.0f}, dry {_DRY_LIMIT_S:.0f})")  # fmt: skip
    add("--dry", action="store_true", help="on a CPU with tiny shapes: finds typos, no figures")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 1 where a task failed, nothing could begin or a dry run has gaps."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    try:
        check(arguments)
        make_results_folder(arguments.out)
        command = shlex.join(["python", "-m", _NAME, *words])
        with stops_unwind():  # whoever stops this stops the task that runs
            results = measure(arguments, command, Console(stderr=True))
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    return int(any(task.ended == "failed" for task in results.tasks) or not is_whole(results))


def is_whole(results: Results) -> bool:
    """Of a dry run: whether every step ran, so that none is wrong. Of others nothing is asked."""
    left = [found for task in results.tasks for found in task.found if isinstance(found, Left)]
    return not results.is_dry or not (left or any(task.ended != "done" for task in results.tasks))


def check(arguments: argparse.Namespace) -> None:
    """Fill in what was left out. Raises InvalidField for what cannot be measured."""
    for name in arguments.tasks:
        if name not in TASKS:
            problem = f"{name!r} is none of {', '.join(TASKS)}; type some of them"
            raise InvalidField("--tasks", problem)
    arguments.tasks = [name for name in TASKS if name in arguments.tasks]  # in order of worth
    usual_s = _DRY_LIMIT_S if arguments.dry else _LIMIT_S
    arguments.limit_s = usual_s if arguments.limit_s is None else arguments.limit_s
    if not _LEAST_S <= arguments.limit_s <= _MOST_S:
        problem = f"{arguments.limit_s:g} is not from {_LEAST_S:g} to {_MOST_S:g} seconds"
        raise InvalidField("--limit-s", f"{problem}; type --limit-s {usual_s:.0f}")
    if not arguments.dry and not probe().cuda_devices:
        raise InvalidField("--dry", "there is no GPU here; type --dry to see that all steps run")
    usual = SMOLLM2 if find_smollm2() is not None and not arguments.dry else TINY
    arguments.target = arguments.target or usual
    locate_target(arguments.target)


def measure(arguments: argparse.Namespace, command: str, console: Console) -> Results:
    """One task after the other; what one does not use, is shared by those that follow."""
    began_s = time.monotonic()
    results = Results(
        tasks=[],
        is_dry=arguments.dry,
        driver=_driver(),
        libraries={name: _version(name) for name in _LIBRARIES},
        machine=describe_machine(),
        command=command,
        limit_s=arguments.limit_s,
    )
    for place, name in enumerate(arguments.tasks):
        shares = [TASKS[each].share_s for each in arguments.tasks[place:]]
        left_s = began_s + arguments.limit_s - time.monotonic()
        task = Task(name=name, limit_s=max(0.0, left_s * shares[0] / sum(shares)))
        results.tasks.append(task)
        console.print(f"{name}: up to {task.limit_s:.0f} s; {left_s:.0f} s are left in all")
        _run(task, results, arguments, began_s)
        console.print(f"{name}: {task.ended} after {task.took_s:.0f} s, {len(task.found)} figures")
    return results


def _run(task: Task, results: Results, arguments: argparse.Namespace, began_s: float) -> None:
    task_began_s = time.monotonic()

    def write() -> None:
        now_s = time.monotonic()
        task.took_s, results.elapsed_s = now_s - task_began_s, now_s - began_s
        write_results(results, arguments.out)
        write_tables(heading(results), tables(results), arguments.out)

    def hear(line: str) -> None:
        task.found.append(msgspec.json.decode(line, type=Found))
        write()

    write()
    # The task is told of an earlier end, so that it can stop by itself.
    told_s = max(1.0, task.limit_s - _LATE_S)
    words = [sys.executable, "-m", "bench.gpu.tasks", task.name, "--out", str(arguments.out)]
    words += ["--target", arguments.target, "--limit-s", f"{told_s:.1f}"]
    words += ["--parent-pid", str(os.getpid()), *(["--dry"] if arguments.dry else [])]
    code = children.run(words, hear, task_began_s + task.limit_s)
    task.ended = "stopped" if code is None else "failed" if code else "done"
    write()


def _driver() -> str:
    """Of the GPU; empty where there is none."""
    try:
        told = _DRIVER.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", told)
    return found[0] if found else told.partition("\n")[0]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


if __name__ == "__main__":
    sys.exit(main())
