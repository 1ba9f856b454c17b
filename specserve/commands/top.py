# pyright: strict
"""`specserve top`: a running service in a terminal, refreshed until Ctrl-C."""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from specserve.commands.connection import add_access_options, client_at, running_service
from specserve.errors import SpecserveError, Unavailable
from specserve.processes.standard_streams import require_stdout, write_stdout

HELP = "watch a running service: throughput, acceptance, hits, calibration, processes"
EXAMPLES = """examples:
  specserve top                             the service on 127.0.0.1:7411, until Ctrl-C
  specserve top --connect 127.0.0.1:40771   another one
  specserve top --interval 5                figures of five seconds each
  specserve top --once                      one frame, as text; figures of one interval
  specserve top --interval 10 | tee -a top.log   frame after frame, where stdout is no terminal

exit codes: 0 after Ctrl-C or --once; 1 when the service has gone, or none answers; 2 for bad usage
"""

_USUAL_ADDRESS = "127.0.0.1:7411"
_INTERVALS_S = 0.1, 3600.0
_COLUMNS = 100  # of a frame that goes to a file or a pipe

if TYPE_CHECKING:
    from specserve.client import Client
    from specserve.commands.top_frame import Snapshot


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `top`."""
    add_access_options(parser, f"the service's gRPC address (default {_USUAL_ADDRESS})")
    parser.set_defaults(connect=_USUAL_ADDRESS)
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="SECONDS",
        help="between two frames, which a frame's figures are of (default 1)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit")


def run(arguments: argparse.Namespace) -> int:
    """Show frames; 0 after Ctrl-C. Raises SpecserveError when the service has gone."""
    require_stdout()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it says itself that a service has gone
    access = running_service(arguments)
    console = Console()
    with client_at(access) as client:
        frames = _frames(client, arguments.connect, arguments.interval)
        try:
            if arguments.once or not console.is_terminal:
                _print(frames, is_one=arguments.once)
            else:
                _show(frames, console)
        except KeyboardInterrupt:
            return 0
        except SpecserveError as error:
            raise Unavailable(f"the service at {arguments.connect} has gone: {error}") from error
    return 0


def _interval(word: str) -> float:
    """The type of `--interval`."""
    least, most = _INTERVALS_S
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        limits = f"{least:g} to {most:g} seconds"
        raise argparse.ArgumentTypeError(f"is {word!r}; it must be {limits}")
    return seconds


def _frames(
    client: "Client", address: str, interval_s: float
) -> Iterator[tuple["Snapshot", "Snapshot"]]:
    """Two looks at the service, so long apart, again and again."""
    from specserve.commands.top_frame import Snapshot

    before = Snapshot.of(client, address)
    while True:
        time.sleep(interval_s)
        now = Snapshot.of(client, address)
        yield before, now
        before = now


def _print(frames: Iterator[tuple["Snapshot", "Snapshot"]], *, is_one: bool) -> None:
    from specserve.commands.top_frame import frame

    for before, now in frames:
        console = Console(width=_COLUMNS, color_system=None)
        with console.capture() as captured:
            console.print(frame(before, now))
        write_stdout(captured.get())
        sys.stdout.flush()
        if is_one:
            return


def _show(frames: Iterator[tuple["Snapshot", "Snapshot"]], console: Console) -> None:
    """On the terminal's other screen, which gives way to what stood there before."""
    from specserve.commands.top_frame import frame

    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update("looking ...", refresh=True)
        for before, now in frames:
            live.update(frame(before, now), refresh=True)
