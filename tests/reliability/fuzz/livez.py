"""How long the event loop lets somebody wait who asks for next to nothing.

    python -m tests.reliability.fuzz.livez 8000

asks port 8000 for /livez until its stdin ends, and says when (CLOCK_MONOTONIC) and for how long: a
process of its own, so that what is measured is the service and not who attacks it.
"""

import http.client
import subprocess
import sys
import threading
import time
from contextlib import suppress

_PAUSE_S = 0.002


class Livez:
    """Asks for as long as it is entered."""

    def __init__(self, http_port: int) -> None:
        self._words = [sys.executable, "-m", __name__, str(http_port)]
        self._asked: list[tuple[float, float]] = []  # when, and seconds until the answer

    def __enter__(self) -> "Livez":
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        while not self._asked:
            assert self._process.poll() is None, "/livez is not answered"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        assert self._process.wait(30) == 0, "/livez was not answered"
        self._thread.join(10)
        self._process.stdout.close()

    def since(self, began_s: float) -> list[float]:
        """Ascending seconds of all that was asked or answered since then; at least one."""
        now_s = time.monotonic()
        while self._asked[-1][0] < now_s:  # what is on its way counts, too
            time.sleep(_PAUSE_S)
        return sorted(seconds for at, seconds in self._asked.copy() if at + seconds >= began_s)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            at, seconds = line.split()
            self._asked.append((float(at), float(seconds)))


def _ask(http_port: int) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=20)
    while not over.is_set():
        began_s = time.monotonic()
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        sys.stdout.write(f"{began_s} {time.monotonic() - began_s}\n")
        sys.stdout.flush()
        time.sleep(_PAUSE_S)
    connection.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        _ask(int(sys.argv[1]))
