# pyright: strict
"""Predicts what cannot be run here, by services that are simulated around the shipped planner.

    python -m bench.simulate --quick --out /tmp/simulated     # under a minute
    python -m bench.simulate                                  # results/simulate: some minutes
    python -m bench.simulate --out bench/results/simulate --page docs/scaling.md
    python -m bench.simulate --parts bench/results/gpu/latest/results.json --page docs/scaling.md

First it reproduces what is known: SSD's table and figure 6, the shape of DSpark's figure 8, and our
own reports from their parts. Then it predicts 4+1 and 8+2 on H100s, up to 512 requests, targets
that share a draft process, and where one more device serves better. No model and no GPU is needed.
With --parts it predicts by what one GPU measured of them, and
nothing else. Definitions are in bench/README.md, what follows from it in docs/scaling.md.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.command_line import progress_bar
from bench.simulate import parts
from bench.simulate.measure import QUICK, WHOLE, Size, measure
from bench.simulate.page import PARTS, blocks_of, check_page, renew_page
from bench.simulate.plots import draw
from bench.simulate.report import heading, tables, verdict
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import SpecserveError

_NAME = "bench.simulate"


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="few tokens and loads: under a minute")
    add("--out", type=Path, metavar="DIR",
        help="results.json, report.md and plots go there (default: results/simulate)")  # fmt: skip
    add("--page", type=Path, metavar="FILE",
        help="a page whose marked figures are renewed, such as docs/scaling.md")  # fmt: skip
    add("--parts", type=Path, metavar="FILE",
        help="results.json of bench.gpu: services of its parts alone, in --out "
        "(default: results/simulate/parts)")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate and write; 0 unless something failed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    size = QUICK if arguments.quick else WHOLE
    command = shlex.join(["python", "-m", _NAME, *words])
    if arguments.out is None:
        arguments.out = Path("results/simulate") / ("parts" if arguments.parts else "")
    try:
        make_results_folder(arguments.out)
        if arguments.page is not None:
            check_page(arguments.page)
        if arguments.parts is not None:
            return _from_parts(arguments, size, command)
        with progress_bar(size.num_steps, Console(stderr=True)) as advance:
            results = measure(size, command, advance)
        write_results(results, arguments.out)
        found = tables(results, draw(results, arguments.out))
        write_tables(heading(results), found, arguments.out)
        if arguments.page is not None:
            renew_page(arguments.page, blocks_of(results))
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(found, verdict(results))
    return 0


def _from_parts(arguments: argparse.Namespace, size: Size, command: str) -> int:
    """Raises InvalidField for a file that has none."""
    found = parts.predict(arguments.parts, parts.SIZES, size.tokens, command)
    write_results(found, arguments.out)
    made = parts.tables(found)
    write_tables(parts.heading(found), made, arguments.out)
    if arguments.page is not None:
        renew_page(arguments.page, {PARTS: parts.block(found)})
    show_tables(made, parts.verdict(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
