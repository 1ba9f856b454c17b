"""`python -m specserve.processes.forkserver` imports what nodes need, and forks them when asked.

Each is forked twice, so that it becomes the supervisor's child, and is then what `python -m MODULE`
would have been. One thread, no CUDA, no socket but the supervisor's: nothing here minds a fork.
"""

import argparse
import importlib
import logging
import os
import runpy
import socket
import sys
import time

import msgspec

from specserve.processes.forkserver.messages import (
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    ROOM,
    Born,
    Fork,
    Preload,
    show,
)
from specserve.processes.process import (
    command_line,
    descriptor_words,
    die_with_parent,
    slow_imports,
)
from specserve.telemetry import setup_logging

_LOOK_S = 0.0005

log = logging.getLogger(__name__)


def main() -> int:
    arguments = _parse()
    die_with_parent(arguments.parent_pid)
    show([word for word in sys.orig_argv if word != ROOM])
    setup_logging("forkserver", arguments.log_level)
    with socket.socket(fileno=arguments.socket_fd) as supervisor:
        preload(supervisor)
        life = await_life(supervisor)
    if life is not None:
        runpy.run_module(life.module, run_name="__main__", alter_sys=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A child of `specserve launch`; not for hands.")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--log-level", required=True)
    parser.add_argument("room")
    return parser.parse_args()


def preload(supervisor: socket.socket) -> None:
    """What takes long of a start."""
    packet = supervisor.recv(MAX_PACKET_BYTES)
    if packet:
        with slow_imports():  # or the first collection in each process would copy all of it
            for module in msgspec.json.decode(packet, type=Preload).modules:
                importlib.import_module(module).preload()


def await_life(supervisor: socket.socket) -> Fork | None:
    """Returns in every process that is forked, with what it is to be; else when no more can be.

    Raises OSError where this machine allows no more processes.
    """
    while True:
        packet, descriptors, _, _ = socket.recv_fds(supervisor, MAX_PACKET_BYTES, MAX_DESCRIPTORS)
        if not packet:
            return None
        fork = msgspec.json.decode(packet, type=Fork)
        middle = os.fork()
        if middle == 0:
            _fork_again_and_end()
            _become(fork, descriptors, supervisor)
            return fork
        _, status = os.waitpid(middle, 0)
        if status:
            raise OSError(f"cannot fork for {fork.module}")
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_again_and_end() -> None:
    """Returns in the new process alone."""
    middle = os.getpid()
    try:
        is_middle = os.fork() != 0
    except OSError:
        os._exit(1)
    if is_middle:
        os._exit(0)
    while os.getppid() == middle:
        time.sleep(_LOOK_S)


def _become(fork: Fork, descriptors: list[int], supervisor: socket.socket) -> None:
    os.setsid()
    words = [*map(os.fsdecode, fork.words), *descriptor_words(descriptors[0], descriptors[1:])]
    sys.argv[1:] = words
    show(command_line(fork.module, words))
    try:
        supervisor.send(msgspec.json.encode(Born(index=fork.index, pid=os.getpid())))
    except OSError:  # nobody waits for it any more
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
