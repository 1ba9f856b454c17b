"""Machines for tests of several: network namespaces where this may be, else loopback addresses.

The first one is this machine as it is. The second is a namespace with one cable to it, or, where
nobody may make any, the same machine by another address.
"""

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.service.launched import Launched

_FLAGS = ("--nnodes", "2", "--oversubscribe", "--set", "model.max_model_len=512")


@dataclass
class TwoHosts:
    """Where the first is reached, and how commands are run on the second."""

    address: str
    within: Sequence[str] = ()
    cable: str = ""  # the first one's end
    obstacle: str = ""  # why there are no namespaces
    flags: Sequence[str] = field(default_factory=list)

    def launch(self, *flags: str) -> tuple[Launched, Launched]:
        """Both; neither is waited for."""
        with socket.create_server((self.address, 0)) as free:
            place = f"{self.address}:{free.getsockname()[1]}"
        self.flags = [*_FLAGS, "--rendezvous", place, *flags]
        if self.cable:
            self.flags.append("--private-network")
        return Launched(*self.flags), self.launch_second()

    def launch_second(self) -> Launched:
        """Once more, with the flags of the latest `launch`."""
        return Launched(*self.flags, "--node-rank", "1", within=self.within)

    def plug(self, state: str) -> None:
        """The cable is "up" or "down"."""
        _ip("link", "set", self.cable, state)


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """While entered, they are there."""
    number = os.getpid() % 4096
    name, near, far = f"specserve{number}", f"spa{number}", f"spb{number}"
    subnet = f"10.213.{number % 256}"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        yield TwoHosts("127.0.0.2", obstacle=f"no network namespaces: {said.strip()}")
        return
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _ip("addr", "add", f"{subnet}.1/30", "dev", near)
        _ip("link", "set", near, "up")
        _ip("-n", name, "addr", "add", f"{subnet}.2/30", "dev", far)
        for device in (far, "lo"):
            _ip("-n", name, "link", "set", device, "up")
        yield TwoHosts(f"{subnet}.1", ("ip", "netns", "exec", name), near)
    finally:
        subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)
        _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
