"""`python -m specserve.processes.hosts` meets the other machines of a launch in a store of torch's.

A child of every launch over several machines, so that the supervisor imports no torch. On node 0 it
lives as long as its launch; elsewhere it ends once it was answered.
"""

import argparse
import socket
import sys

import msgspec

from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import Broken, Meet, ToMeeting
from specserve.processes.process import die_with_parent
from specserve.telemetry import setup_logging


def main() -> int:
    arguments = _parse()
    die_with_parent(arguments.parent_pid)
    setup_logging("rendezvous", arguments.log_level)
    sock = socket.socket(fileno=arguments.socket_fd)
    lines = Lines(sock, msgspec.json.Decoder(ToMeeting))
    try:
        _meet(lines, arguments.listen_fd)
    # Whatever torch raises of a network, and what strangers have put into the place of an answer.
    except (RuntimeError, ValueError, msgspec.MsgspecError) as error:
        lines.send(Broken(error=" ".join(str(error).split())[:500]))
        return 1
    finally:
        lines.close()
    return 0


def _meet(lines: Lines[ToMeeting], listen_fd: int | None) -> None:
    from specserve.processes.hosts.store import ask, hold, open_store  # slow: torch

    while not (wishes := lines.receive()):
        lines.wait(1.0)
        if lines.is_over:
            return
    (wish,) = wishes
    assert isinstance(wish, Meet)
    if wish.facts is None:
        hold(lines, open_store(wish, listen_fd))
    else:
        lines.send(ask(open_store(wish), wish.facts))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A child of `specserve launch`; not for hands.")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--log-level", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
