"""Two services that share one draft node: what each of two equal closed loops gets.

    python -m bench.shared_draft --target tiny --seconds 20

starts both services and the draft node on loopback, asks both for the same seeded answers, one
after the other and as many as fit into the time, and prints tokens a second of each, their ratio
and whether all texts were equal.
"""

import argparse
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from specserve.client import Client

_PROMPT, _TOKENS = "def fibonacci(n):", 64


class Loop(threading.Thread):
    """Asks one service, one request at a time; every request has a seed of its own."""

    def __init__(self, address: str, start: threading.Barrier, seconds: float) -> None:
        super().__init__()
        self._address, self._start, self._seconds = address, start, seconds
        self.texts: list[str] = []
        self.tokens_per_s = 0.0

    def run(self) -> None:
        with Client(self._address) as client:
            self._ask(client, 0)
            self._start.wait()
            began_s, taken_s = time.monotonic(), 0.0
            for seed in itertools.count(1):
                self.texts.append(self._ask(client, seed))
                taken_s = time.monotonic() - began_s
                if taken_s > self._seconds:
                    break
            self.tokens_per_s = len(self.texts) * _TOKENS / taken_s

    def _ask(self, client: Client, seed: int) -> str:
        options = {"max_tokens": _TOKENS, "temperature": 0.8, "ignore_eos": True}
        return client.generate(_PROMPT, seed=seed, **options).text


@contextmanager
def command(until: str, *words: str) -> Generator[str]:
    """Run `specserve` with `words` while inside; the first line of its output that has `until`."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "specserve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if until in line), None)
            if line is None:
                raise SystemExit(f"specserve {' '.join(words)} has ended")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield line
        finally:
            process.terminate()
            process.wait(60)


def free_place() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--ballast", default="60M", help="the tiny target's cost; 0: none")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    model = ["--target", given.target, "--oversubscribe", "--max-model-len", "512"]
    model += ["--ballast", given.ballast] if given.target == "tiny" and given.ballast != "0" else []
    places = [free_place() for _ in range(2)]
    with ExitStack() as stack:
        addresses: list[str] = []
        for place in places:
            words = ("launch", *model, "--port", "0", "--topology", "1+1", "--draft-address", place)
            line = stack.enter_context(command("listening on", *words, "--speculation", "async"))
            addresses += re.findall(r"listening on (\S+)", line)
        attach = ("draft", *model, "--attach-to", ",".join(places))
        stack.enter_context(command("is ready", *attach))
        start = threading.Barrier(len(addresses))
        loops = [Loop(address, start, given.seconds) for address in addresses]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.join()
    rates = [loop.tokens_per_s for loop in loops]
    both = list(zip(*(loop.texts for loop in loops), strict=False))
    report = {
        "tokens_per_s": [round(rate, 1) for rate in rates],
        "ratio": round(min(rates) / max(rates), 3),
        "num_compared": len(both),
        "texts_are_equal": all(first == second for first, second in both),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 0 if report["texts_are_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
