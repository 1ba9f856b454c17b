"""SmolLM2, asked the same seeded and greedy requests plainly and with every kind of speculation.

    python -m tests.exactness.real_model --requests 300

Answers of all services have to be those of plain decoding: tokens, texts, reasons, log
probabilities. Draft processes are killed meanwhile, as often as `--kills` says. Prints a line a
service; exits with 1 if a request failed or differs, or a draft did not come back.
"""

import argparse
import os
import signal
import sys
import threading
import time

from tests.exactness.workload import Outcome, SeededRequest, chat_requests, differing, run
from tests.service.blows import draft_pids
from tests.service.chaos import end
from tests.service.launched import Launched

_COMMON = ("--target", "smollm2", "--max-model-len", "512", "--oversubscribe")
_LM = ("--drafter", "smollm2")
SERVICES = {
    "sync": ("--speculation", "sync"),
    "sync lm": ("--speculation", "sync", *_LM),
    "auto": (),
    "1+1": ("--topology", "1+1", "--speculation", "async"),
    "1+1 lm": ("--topology", "1+1", "--speculation", "async", *_LM),
    "1+1 auto": ("--topology", "1+1"),
    "2+1": ("--topology", "2+1", "--speculation", "async", "--oversubscribe"),
    "3+1": ("--topology", "3+1", "--speculation", "async", "--oversubscribe"),
    "4+1": ("--topology", "4+1", "--speculation", "async", "--oversubscribe"),
}


def plainly(requests: list[SeededRequest], concurrency: int = 8) -> list[Outcome]:
    """By a service without drafts, which ends before this returns."""
    launched = Launched(*_COMMON, "--speculation", "off")
    try:
        return run(launched.address(), requests, concurrency=concurrency)
    finally:
        end(launched)


def with_drafts(
    requests: list[SeededRequest], flags: tuple[str, ...], *, kills: int, concurrency: int = 8
) -> tuple[list[Outcome], int]:
    """Answers, and how often a draft process was killed meanwhile, at most `kills` times."""
    launched = Launched(*_COMMON, *flags)
    try:
        address = launched.address()
        over = threading.Event()
        killer = _Killer(launched, kills, over)
        killer.start()
        try:
            return run(
                address, requests, concurrency=concurrency, shuffle_seed=1
            ), killer.num_killed
        finally:
            over.set()
            killer.join(60)
    finally:
        end(launched)


class _Killer(threading.Thread):
    """Kills a draft process every two seconds, once it is there."""

    def __init__(self, launched: Launched, kills: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.num_killed = 0
        self._launched, self._kills, self._over = launched, kills, over

    def run(self) -> None:
        while self.num_killed < self._kills and not self._over.wait(2.0):
            for pid in draft_pids(self._launched.process.pid).values():
                _kill(pid)
                self.num_killed += 1
                break


def _kill(pid: int) -> None:
    """Whoever has gone meanwhile is none of ours."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--kills", type=int, default=3, help="of the draft, a service")
    parser.add_argument("--only", nargs="*", choices=SERVICES, default=list(SERVICES))
    options = parser.parse_args()
    requests = chat_requests(options.requests)
    plain, failed = plainly(requests), False
    for name in options.only:
        began_s = time.monotonic()
        has_draft = "--topology" in SERVICES[name]
        kills = options.kills if has_draft else 0
        found, num_killed = with_drafts(requests, SERVICES[name], kills=kills)
        wrong = differing(plain, found)
        failed |= bool(wrong) or num_killed < kills
        sys.stdout.write(
            f"{name}: {len(wrong)} of {len(requests)} differ, {num_killed} kills, "
            f"{time.monotonic() - began_s:.0f} s {wrong[:5]}\n"
        )
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
