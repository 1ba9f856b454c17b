# pyright: strict
"""Answers in a form under speculation: valid, equal in every mode, and what the grammar costs.

    python -m bench.structured --quick
    python -m bench.structured --target tiny --only validity --out bench/results/structured/tiny
    python -m bench.structured --requests 48 --num-prompts 8 --pairs 5

`validity` asks seeded requests of many forms with speculation off, sync and async; `cost` asks the
same prompts with and without a grammar; `drafts` leaves the mask of drafts out. results.json and
report.md are written again after each of them.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.command_line import TARGET_HELP, progress_bar
from bench.conversations import Questions, prepare_questions
from bench.drafter_choice import default_words, parse_choice
from bench.machine import describe_machine
from bench.prompt_choice import add_prompt_options, read_prompts
from bench.services.launch_flags import split_flags
from bench.structured import cost, drafts
from bench.structured.asking import Asked
from bench.structured.report import Results, heading, tables, verdict
from bench.structured.validity import MODES, ask_modes, examine
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import InvalidField, SpecserveError
from specserve.settings.target_source import default_name, locate_target

_NAME = "bench.structured"
_VALIDITY, _COST, _DRAFTS = "validity", "cost", "drafts"
_PARTS = (_VALIDITY, _COST, _DRAFTS)
_REQUESTS, _QUICK_REQUESTS = 1000, 32
_AT_ONCE = 16
_PROMPTS, _QUICK_PROMPTS = 8, 2
_PAIRS, _QUICK_PAIRS = 6, 2
_TOKENS, _QUICK_TOKENS = 64, 24
_WHOLE_TOKENS = 192  # of an answer that is to end by itself


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="little of everything: a few minutes")
    add("--out", type=Path, default=Path("results/structured"), metavar="DIR")
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART",
        help=f"of {', '.join(_PARTS)} (default: all)")  # fmt: skip
    requests = f"{_REQUESTS}, quick {_QUICK_REQUESTS}"
    add("--requests", type=int, metavar="N", help=f"of validity in every mode (default {requests})")
    add("--whole-tokens", type=int, default=_WHOLE_TOKENS, metavar="N",
        help="of an answer of validity at most (default: %(default)s)")  # fmt: skip
    add("--loads", type=int, nargs="+", default=[1, 16], metavar="N",
        help="requests at a time of cost (default: 1 16)")  # fmt: skip
    pairs = f"{_PAIRS}, quick {_QUICK_PAIRS}"
    add("--pairs", type=int, metavar="N", help=f"with and without a grammar (default {pairs})")
    add("--drafters", nargs="+", metavar="DRAFTER",
        help="of drafts (default: the target's own, and ngram)")  # fmt: skip
    add("--flags", default="--oversubscribe", metavar="FLAGS",
        help="of every service, as one word (default: %(default)r)")  # fmt: skip
    add_prompt_options(parser, f"exactly {_TOKENS}, quick {_QUICK_TOKENS}, of cost and drafts")
    return parser


class Bench:
    """One run: what was asked for, and what has been found so far."""

    def __init__(self, arguments: argparse.Namespace, command: str, console: Console) -> None:
        """Raises InvalidField for what cannot be asked, before anything is started."""
        counts = {"--requests": arguments.requests, "--pairs": arguments.pairs}
        counts |= {"--whole-tokens": arguments.whole_tokens, "--loads": min(arguments.loads)}
        for field, value in counts.items():
            if value is not None and value < 1:
                raise InvalidField(field, f"{value} is less than 1")
        quick: bool = arguments.quick
        self._arguments = arguments
        self._console = console
        self._target = locate_target(arguments.target)
        self._flags = split_flags("--flags", arguments.flags)
        self._num_requests: int = arguments.requests or (_QUICK_REQUESTS if quick else _REQUESTS)
        self._num_pairs: int = arguments.pairs or (_QUICK_PAIRS if quick else _PAIRS)
        self._num_tokens: int = arguments.max_tokens or (_QUICK_TOKENS if quick else _TOKENS)
        words: Sequence[str] = arguments.drafters or default_words(self._target)
        self._choices = [parse_choice(word) for word in words]
        for choice in self._choices:
            choice.located(self._target)
        machine = describe_machine()
        self.results = Results(model=default_name(self._target), command=command, machine=machine)

    def run(self) -> Results:
        """Every part that is wanted, and what was found written after each."""
        parts = {_VALIDITY: self._validity, _COST: self._cost, _DRAFTS: self._drafts}
        for name in _PARTS:
            if name in self._arguments.only:
                parts[name]()
                write_results(self.results, self._arguments.out)
                write_tables(heading(self.results), tables(self.results), self._arguments.out)
        return self.results

    def _validity(self) -> None:
        tokenizer = TextTokenizer(self._target)
        is_chat = tokenizer.has_chat_template
        tokenizer.close()
        requests = [Asked(number) for number in range(self._num_requests)]
        max_tokens = self._arguments.whole_tokens
        with progress_bar(len(requests) * len(MODES), self._console) as advance:
            answers = ask_modes(
                self._target,
                self._flags,
                requests,
                at_once=_AT_ONCE,
                max_tokens=max_tokens,
                is_chat=is_chat,
                advance=advance,
            )
        self.results.validity = examine(
            self._target, requests, answers, at_once=_AT_ONCE, max_tokens=max_tokens
        )

    def _cost(self) -> None:
        questions = self._questions()
        plan = cost.Plan(
            loads=self._arguments.loads,
            num_pairs=self._num_pairs,
            num_tokens=self._num_tokens,
            longest=max(map(len, questions.prompts)),
        )
        with asyncio.Runner() as runner, progress_bar(plan.num_steps, self._console) as advance:
            self.results.cost = cost.measure(
                self._target,
                self._flags,
                questions.prompts,
                plan,
                runner=runner,
                advance=advance,
            )

    def _drafts(self) -> None:
        prompts = self._questions().prompts
        total = drafts.num_steps(len(self._choices), len(prompts))
        with progress_bar(total, self._console) as advance:
            self.results.drafts = drafts.measure(
                self._target, self._choices, prompts, num_tokens=self._num_tokens, advance=advance
            )

    def _questions(self) -> Questions:
        chosen = read_prompts(
            self._arguments, _QUICK_PROMPTS if self._arguments.quick else _PROMPTS
        )
        questions = prepare_questions(chosen, self._target, self._num_tokens)
        self.results.prompts = f"Cost and drafts: {questions.line}; {self._num_tokens} tokens each."
        return questions


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed, was invalid or differed."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    command = shlex.join(["python", "-m", _NAME, *words])
    try:
        make_results_folder(arguments.out)
        results = Bench(arguments, command, Console(stderr=True)).run()
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    show_tables(tables(results), verdict(results))
    return 0 if results.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
