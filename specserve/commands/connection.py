# pyright: strict
"""`--connect`, or a service of one's own for the length of one command."""

import argparse
import shlex
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Console

from specserve.commands.service_options import add_service_options, as_typed, command_line
from specserve.errors import InvalidField, Unavailable
from specserve.processes.local_service import local_service

_LARGEST_PORT = 65_535
_HELP_OF_OWN = {  # where `local_service` has another default than `launch`
    "--port": "gRPC port (default: any free one)",
    "--log-level": "debug, info, warning or error (default warning)",
}


def host_port(word: str) -> str:
    """The type of `--connect`."""
    host, _, port = word.rpartition(":")
    is_plain = ":" not in host or (host[0], host[-1]) == ("[", "]")
    if not host or not is_plain or not (port.isascii() and port.isdigit()):
        found = repr(word) if word else "empty"
        raise argparse.ArgumentTypeError(f"is {found}; it must be host:port, as 127.0.0.1:7411")
    if not 1 <= int(port) <= _LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"has port {port}; the limit is 1 to {_LARGEST_PORT}")
    return word


def require_service(address: str) -> None:
    """Raises Unavailable, naming `--connect`, where nothing can be asked."""
    from specserve.client import is_reachable  # gRPC is slow to import

    if not is_reachable(address):
        raise Unavailable(
            f"--connect: no service answers at {address}; correct the address, "
            "or start one with: specserve launch"
        )


def add_connection_options(
    parser: argparse.ArgumentParser, other_help: Mapping[str, str] | None = None
) -> None:
    """`--connect`, and the flags of the service started without it.

    `other_help` is that of `add_service_options`.
    """
    parser.add_argument(
        "--connect",
        type=host_port,
        metavar="HOST:PORT",
        help="use a running service; without it one is started, and stopped afterwards",
    )
    add_service_options(parser, {**_HELP_OF_OWN, **(other_help or {})})


@contextmanager
def service_address(arguments: argparse.Namespace) -> Generator[str]:
    """host:port to talk to while inside. Raises SpecserveError if there is none."""
    refuse_idle_settings(arguments)
    if arguments.connect is not None:
        require_service(arguments.connect)
        yield arguments.connect
        return
    with ExitStack() as stack:
        with _spinner("starting a service"):
            address = stack.enter_context(local_service(command_line(arguments)))
        yield address


def refuse_idle_settings(arguments: argparse.Namespace) -> None:
    """Raise InvalidField for flags of a service beside `--connect`, which starts none."""
    words = as_typed(arguments)
    if arguments.connect is not None and words:
        problem = f"a running service keeps its own settings; drop {shlex.join(words)}"
        raise InvalidField("--connect", problem)


@contextmanager
def _spinner(text: str) -> Generator[None]:
    """Only on a terminal, and never on stdout, which belongs to the answer."""
    with Console(stderr=True).status(text):
        yield
