"""`python -m tests.plants`: bugs planted one at a time, each of which its tests have to find.

    python -m tests.plants                         all of them, and docs/plants.md anew
    python -m tests.plants --list
    python -m tests.plants --only stale-distributions       one; several names may follow
    python -m tests.plants --file target_node/speculation/asynchronous.py

A plant is put into a copy of the tree, where the tests run that it names; for one that they do not
find, the fast suite. One takes some ten seconds, all a quarter of an hour on two cores. Exits
with 1 if a plant is not found by a judgement of its own tests, or if its code has moved.
"""

import argparse
import difflib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.plants.catalogue import PLANTS
from tests.plants.plant import Plant
from tests.plants.report import commit_of_tree, write_report
from tests.plants.verdict import Found, Verdict, judge, unsound
from tests.plants.workshop import end_all

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs" / "plants.md"


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.plants",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these plants; see --list")
    parser.add_argument("--file", metavar="PATH", help="the plants of one file")
    parser.add_argument("--list", action="store_true", help="names and what they break")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at a time (default: 2)")
    parser.add_argument(
        "--trust", action="store_true", help="do not run the tests without the plants first"
    )
    return parser


def chosen(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[Plant]:
    """The plants that are asked for; ends the program for a name that is none."""
    names = {plant.name: plant for plant in PLANTS}
    for name in options.only or ():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1) or ["--list shows all"]
            parser.error(f"argument --only: no plant is called {name!r}; {near[0]}?")
    found = [plant for plant in PLANTS if not options.only or plant.name in options.only]
    if options.file:
        file = os.path.relpath(Path(options.file).resolve(), ROOT)
        found = [plant for plant in found if plant.file == file]
        if not found:
            files = {plant.file for plant in PLANTS}
            near = difflib.get_close_matches(file, files, n=1) or ["--list shows all"]
            parser.error(f"argument --file: no plant breaks {file!r}; {near[0]}?")
    if options.jobs < 1:
        parser.error(f"argument --jobs: {options.jobs} is below 1")
    return found


def run(plants: list[Plant], jobs: int, *, trust: bool, console: Console) -> Iterator[Verdict]:
    """Verdicts as they come."""
    bad: dict[str, str] = {}
    if not trust:
        console.print(f"the tests of {len(plants)} plants, on the tree as it is ...")
        bad = unsound(plants, ROOT)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )
    pool = ThreadPoolExecutor(jobs)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(plants), what="")
        for name, why in bad.items():
            plant = next(plant for plant in plants if plant.name == name)
            progress.update(task, advance=1, what=name)
            yield Verdict(plant, Found.BROKEN, f"without the plant: {why}")
        waiting = [pool.submit(judge, plant, ROOT) for plant in plants if plant.name not in bad]
        try:
            for future in as_completed(waiting):
                progress.update(task, advance=1, what=future.result().plant.name)
                yield future.result()
        finally:  # also when somebody interrupts it
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()


def line_of(verdict: Verdict) -> str:
    """`name  caught  9.1 s  tests/...`."""
    return f"{verdict.plant.name:42} {verdict.found:10} {verdict.seconds:6.1f} s  {verdict.by}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all plants were found by their own tests."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    plants = chosen(options, parser)
    if options.list:
        for plant in plants:
            sys.stdout.write(f"{plant.name:42} {plant.file}: {plant.breaks}\n")
        return 0
    began_s, commit, verdicts = time.monotonic(), commit_of_tree(), list[Verdict]()
    try:
        for verdict in run(plants, options.jobs, trust=options.trust, console=Console(stderr=True)):
            sys.stdout.write(f"{line_of(verdict)}\n")
            sys.stdout.flush()
            verdicts.append(verdict)
    except KeyboardInterrupt:
        sys.stdout.write(f"stopped; {len(verdicts)} of {len(plants)} were tried\n")
        return 130
    lost = [verdict for verdict in verdicts if verdict.found is not Found.BY_ITS_TESTS]
    if len(plants) == len(PLANTS) and not lost and not options.trust:
        places = {plant.name: place for place, plant in enumerate(PLANTS)}
        verdicts.sort(key=lambda verdict: places[verdict.plant.name])
        write_report(REPORT, verdicts, time.monotonic() - began_s, commit)
    sys.stdout.write(f"{len(verdicts) - len(lost)} of {len(verdicts)} caught by their tests\n")
    sys.stdout.writelines(f"{line_of(verdict)}\n" for verdict in lost)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
