"""The process that finds out what a grammar comes to: `python -m specserve.grammars.checking`.

Started by `specserve.grammars.checker`, not for hands. A line of JSON in is a grammar, a line out
what is wrong with it, empty if nothing is. A grammar may exhaust a stack or never be done, so it
gets this process's stack and time, and ends no other.
"""

import signal
import sys
import threading

import llguidance
import msgspec

from specserve.grammars.source import LIMITS, source_of
from specserve.types import Grammar

_STACK_BYTES = 32 * 1024 * 1024


class Verdict(msgspec.Struct, frozen=True):
    """`problem` as llguidance has it; empty: there is none."""

    problem: str = ""


def verdict_on(grammar: Grammar) -> Verdict:
    try:
        source = source_of(grammar)
    except ValueError as error:
        return Verdict(str(error) or type(error).__name__)
    return Verdict(llguidance.LLMatcher.validate_grammar(source, limits=LIMITS))


def _serve(limit_s: float) -> None:
    for line in sys.stdin.buffer:
        grammar = msgspec.json.decode(line, type=Grammar)
        # Of this process's own time, which no neighbour makes longer. Nobody handles the signal:
        # it ends the process, whatever is being computed.
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        verdict = verdict_on(grammar)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for who started all
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(float(sys.argv[1]),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
