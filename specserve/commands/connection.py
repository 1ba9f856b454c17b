# pyright: strict
"""`--connect`, or a service of one's own for the length of one command."""

import argparse
import os
import shlex
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from specserve.commands.service_options import add_service_options, as_typed, command_line
from specserve.errors import InvalidField, Unavailable
from specserve.processes.local_service import local_service
from specserve.settings.key_file import read_keys

if TYPE_CHECKING:
    from specserve.access import Access
    from specserve.client import Client

_LARGEST_PORT = 65_535
_KEY_VARIABLE = "SPECSERVE_API_KEY"
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


def running_service(arguments: argparse.Namespace) -> "Access":
    """That of `--connect`. Raises Unavailable where nothing can be asked, or InvalidField."""
    from specserve.access import Access, is_reachable  # gRPC is slow to import

    access = Access(arguments.connect, _api_key(arguments), arguments.tls_ca)
    if not is_reachable(access):
        with_tls = " with TLS (--tls-ca)" if arguments.tls_ca is not None else ""
        raise Unavailable(
            f"--connect: no service answers at {access.address}{with_tls}; start one with: "
            "specserve launch, or correct the address: that of gRPC, which launch prints last, "
            "and with --tls-ca where it has TLS"
        )
    return access


def _api_key(arguments: argparse.Namespace) -> str | None:
    """The first of the file, or what the environment says."""
    if arguments.api_key_file is not None:
        return read_keys(arguments.api_key_file, "--api-key-file")[0].key
    return os.environ.get(_KEY_VARIABLE) or None


def add_access_options(parser: argparse.ArgumentParser, help_of_connect: str) -> None:
    """`--connect`, and what gets one in there."""
    add = parser.add_argument
    add("--connect", type=host_port, metavar="HOST:PORT", help=help_of_connect)
    key_help = f"of --connect: its first key is sent (default: the variable {_KEY_VARIABLE})"
    add("--api-key-file", type=Path, metavar="FILE", help=key_help)
    tls_help = "of --connect: PEM file of the certificates to trust, or public for the usual ones"
    add("--tls-ca", metavar="FILE", help=tls_help)


def add_connection_options(
    parser: argparse.ArgumentParser, other_help: Mapping[str, str] | None = None
) -> None:
    """`--connect`, and the flags of the service started without it.

    `other_help` is that of `add_service_options`.
    """
    usage = "use a running service; without it one is started, and stopped afterwards"
    add_access_options(parser, usage)
    add_service_options(parser, {**_HELP_OF_OWN, **(other_help or {})}, is_private=True)


@contextmanager
def client_of(arguments: argparse.Namespace) -> Generator["Client"]:
    """To talk to a service while inside. Raises SpecserveError if there is none."""
    from specserve.client import Client

    refuse_idle_settings(arguments)
    if arguments.connect is not None:
        with client_at(running_service(arguments)) as client:
            yield client
        return
    with ExitStack() as stack:
        with _spinner("starting a service"):
            address = stack.enter_context(local_service(command_line(arguments)))
        with Client(address) as client:
            yield client


def client_at(access: "Access") -> "Client":
    """To be closed by the caller. Raises InvalidField for a file that cannot be read."""
    from specserve.client import Client

    return Client(access.address, api_key=access.api_key, tls_ca=access.tls_ca)


def refuse_idle_access(arguments: argparse.Namespace) -> None:
    """Raise InvalidField for what gets one into a running service where none is meant."""
    for flag in ("api_key_file", "tls_ca"):
        if arguments.connect is None and getattr(arguments, flag) is not None:
            name = "--" + flag.replace("_", "-")
            raise InvalidField(name, "is of use with --connect HOST:PORT alone; drop it")


def refuse_idle_settings(arguments: argparse.Namespace) -> None:
    """Raise InvalidField for flags of a service beside `--connect`, and the other way round."""
    refuse_idle_access(arguments)
    words = as_typed(arguments)
    if arguments.connect is not None and words:
        problem = f"a running service keeps its own settings; drop {shlex.join(words)}"
        raise InvalidField("--connect", problem)


@contextmanager
def _spinner(text: str) -> Generator[None]:
    """Only on a terminal, and never on stdout, which belongs to the answer."""
    with Console(stderr=True).status(text):
        yield
