# pyright: strict
"""`python -m specserve.demo`: the whole path once, on the embedded model, as a newcomer sees it.

Starts `specserve launch --topology 1+0`, sends a prompt through gRPC, streams the answer, stops
the service with SIGINT, and exits with the first code that is not 0.
"""

import os
import signal
import subprocess
import sys
from typing import IO

from specserve.client import Client
from specserve.errors import SpecserveError
from specserve.standard_streams import complain

_PROMPT = "def read_lines(path):\n"
_LISTENING = "listening on "


def main() -> int:
    """The exit code of the demonstration."""
    words = [sys.executable, "-m", "specserve", "launch", "--topology", "1+0", "--port", "0"]
    _say("$ specserve launch --topology 1+0 --port 0\n")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            address = _await_address(service.stdout)
            answered = address is not None and _generate(address)
        finally:
            service.send_signal(signal.SIGINT)
    if service.returncode != 0 or not answered:
        return service.returncode or 1
    _say("the service stopped cleanly\n")
    return os.EX_OK


def _await_address(lines: IO[str]) -> str | None:
    """Pass on what the launch prints, until it listens; None if it ends before."""
    for line in lines:
        _say(line)
        if line.startswith(_LISTENING):
            return line.removeprefix(_LISTENING).strip()
    return None


def _generate(address: str) -> bool:
    """Stream one answer; whether it went well."""
    _say(f"\n$ specserve generate --connect {address} --temperature 0.7 --seed 7 ...\n{_PROMPT}")
    try:
        with Client(address) as client:
            for delta in client.stream(_PROMPT, temperature=0.7, seed=7, max_tokens=96):
                _say(delta.text)
    except SpecserveError as error:
        complain(str(error))
        return False
    _say("\n\n")
    return True


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
