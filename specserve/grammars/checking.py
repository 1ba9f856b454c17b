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

from specserve.errors import InvalidField, SpecserveError
from specserve.grammars.compiler import Vocabulary, compiled
from specserve.types import Grammar

_STACK_BYTES = 32 * 1024 * 1024


class Task(msgspec.Struct, frozen=True):
    """The one argument of this process, as JSON."""

    limit_s: float  # of a processor, for one grammar
    vocabulary: Vocabulary


class Verdict(msgspec.Struct, frozen=True):
    """`problem` with a grammar of this name; empty: there is none."""

    problem: str = ""
    is_defect: bool = False  # of the model's vocabulary, not of the grammar


def verdict_on(grammar: Grammar, tokens: llguidance.LLTokenizer) -> Verdict:
    try:
        compiled(grammar, tokens)
    except InvalidField as error:
        return Verdict(error.problem)
    return Verdict()


def _serve(task: Task) -> None:
    try:
        tokens = task.vocabulary.tokens()
    except SpecserveError as error:
        tokens = Verdict(str(error), is_defect=True)
    for line in sys.stdin.buffer:
        verdict = tokens if isinstance(tokens, Verdict) else _in_time(task, line, tokens)
        sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
        sys.stdout.buffer.flush()


def _in_time(task: Task, line: bytes, tokens: llguidance.LLTokenizer) -> Verdict:
    """Of this process's own time, which no neighbour makes longer.

    Nobody handles the signal: it ends the process, whatever is being computed.
    """
    grammar = msgspec.json.decode(line, type=Grammar)
    signal.setitimer(signal.ITIMER_PROF, task.limit_s)
    verdict = verdict_on(grammar, tokens)
    signal.setitimer(signal.ITIMER_PROF, 0)
    return verdict


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, meant for who started all
    threading.stack_size(_STACK_BYTES)
    task = msgspec.json.decode(sys.argv[1], type=Task)
    thread = threading.Thread(target=_serve, args=(task,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
