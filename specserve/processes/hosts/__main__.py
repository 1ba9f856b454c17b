"""`python -m specserve.processes.hosts` meets the other machines of a launch in a store of torch's.

On node 0 it holds the store, which ranks and draft processes use later, and passes on who arrives
and what they are answered; it lives as long as its launch. Elsewhere it says what its machine says
of itself, waits for the answer and ends. Decides nothing. What is in the store is text.
"""

import argparse
import datetime
import logging
import os
import secrets
import socket
import sys
import time

import msgspec

from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import Answer, Arrived, Broken, Meet, ToMeeting
from specserve.processes.process import die_with_parent
from specserve.settings.hosts import HostFacts
from specserve.telemetry import setup_logging

_LOOK_S = 0.1  # between looks into the store
_MOST_BYTES = 1 << 20  # of what a machine says of itself
_VISITS = "visits"  # a key with a line for each that came

# torch's own words for a peer that is not there yet, several times a second.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
from torch.distributed import TCPStore  # noqa: E402

log = logging.getLogger(__name__)


def main() -> int:
    arguments = _parse()
    die_with_parent(arguments.parent_pid)
    setup_logging("rendezvous", arguments.log_level)
    sock = socket.socket(fileno=arguments.socket_fd)
    lines = Lines(sock, msgspec.json.Decoder(ToMeeting))
    try:
        while not (wishes := lines.receive()):
            if lines.is_over or not lines.wait(60):
                return 1
        (wish,) = wishes
        assert isinstance(wish, Meet)
        if wish.facts is None:
            _hold(lines, _store(wish, arguments.listen_fd))
        else:
            lines.send(_ask(_store(wish), wish.facts))
    except (RuntimeError, ValueError) as error:  # whatever torch raises of a network
        lines.send(Broken(error=" ".join(str(error).split())[:500]))
        return 1
    finally:
        lines.close()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A child of `specserve launch`; not for hands.")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int)
    parser.add_argument("--log-level", required=True)
    return parser.parse_args()


def _store(wish: Meet, listen_fd: int | None = None) -> TCPStore:
    """Its own on node 0, on a socket that listens already; else a way to that one."""
    return TCPStore(
        wish.host,
        wish.port,
        is_master=listen_fd is not None,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=wish.timeout_s),
        master_listen_fd=listen_fd,
    )


def _hold(lines: Lines[ToMeeting], store: TCPStore) -> None:
    """Until the launch ends."""
    num_seen = 0
    while not lines.is_over:
        if lines.wait(_LOOK_S):
            for answer in lines.receive():
                assert isinstance(answer, Answer)
                store.set(f"answer/{answer.visit}", msgspec.json.encode(answer).decode())
        if not store.check([_VISITS]):
            continue
        visits = store.get(_VISITS).decode(errors="replace").split()
        for visit in visits[num_seen:]:
            facts = _decoded(store, f"facts/{visit}")
            if facts is not None:
                lines.send(Arrived(visit=visit, facts=facts))
        num_seen = len(visits)


def _decoded(store: TCPStore, key: str) -> HostFacts | None:
    """None for what nobody here has put there."""
    if not store.check([key]):
        return None
    try:
        text = store.get(key)
        if len(text) <= _MOST_BYTES:
            return msgspec.json.decode(text, type=HostFacts)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        log.warning("somebody came who says nothing that is understood: %s", error)
    return None


def _ask(store: TCPStore, facts: HostFacts) -> Answer:
    """The launch that waits for this says when to give up."""
    visit = secrets.token_hex(8)
    store.set(f"facts/{visit}", msgspec.json.encode(facts).decode())
    store.append(_VISITS, f"{visit}\n")
    while not store.check([f"answer/{visit}"]):
        time.sleep(_LOOK_S)
    return msgspec.json.decode(store.get(f"answer/{visit}"), type=Answer)


if __name__ == "__main__":
    sys.exit(main())
