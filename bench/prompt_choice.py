# pyright: strict
"""Which prompts a bench asks: what the command line says, and an even choice over categories."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.prompt_files import STANDARD_PROMPTS, PromptRecord, read_prompt_file
from specserve.errors import InvalidField

MAX_TOKENS = 128  # of an answer, unless a bench says otherwise
LEAST_TOKENS = 10  # of one: more than one round of any drafter of ours
_SEED = 0


class ChosenPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """`records` of the `num_available` in a file or of its chosen categories."""

    name: str  # of the file's format, or "standard"
    records: tuple[PromptRecord, ...]
    num_available: int


def add_prompt_options(parser: argparse.ArgumentParser, max_tokens: str) -> None:
    """--prompts, --num-prompts, --categories and --max-tokens, whose default is said so."""
    add = parser.add_argument
    files = "Spec-Bench, MT-Bench, HumanEval or GSM8K (default: a small set of our own)"
    add("--prompts", metavar="FILE", help=files)
    add("--num-prompts", type=int, metavar="N", help="how many of them, evenly over categories")
    add("--categories", nargs="+", metavar="C", help="of the prompts (default: all)")
    add("--max-tokens", type=int, metavar="N", help=f"of an answer (default: {max_tokens})")


def read_prompts(arguments: argparse.Namespace, default: int | None) -> ChosenPrompts:
    """What the flags ask for; without --num-prompts `default`, or as many as there are.

    `default` None: all. Raises InvalidField.
    """
    file = read_prompt_file(_path(arguments.prompts))
    categories: list[str] = arguments.categories or file.categories
    for category in categories:
        if category not in file.categories:
            known = ", ".join(file.categories)
            raise InvalidField("--categories", f"{category!r} is none of {known}")
    records = [record for record in file.records if record.category in categories]
    count: int | None = arguments.num_prompts
    if count is None:
        count = len(records) if default is None else min(default, len(records))
    if not 1 <= count <= len(records):
        raise InvalidField(
            "--num-prompts", f"{count} is not between 1 and the {len(records)} there are"
        )
    return ChosenPrompts(
        name=file.name, records=tuple(stratified(records, count)), num_available=len(records)
    )


def add_domain_option(parser: argparse.ArgumentParser, domains: Sequence[str]) -> None:
    """--domains: what the tiny model was trained for, instead of prompts that others know."""
    parser.add_argument("--domains", nargs="+", choices=domains, metavar="D",
        help=f"held-out texts ({', '.join(domains)}) instead of --prompts")  # fmt: skip


def read_domains(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Empty: prompts are asked. Raises InvalidField for both."""
    domains: list[str] = arguments.domains or []
    for field, value in (("--prompts", arguments.prompts), ("--categories", arguments.categories)):
        if domains and value:
            raise InvalidField("--domains", f"are held-out texts; leave them or {field} out")
    if domains and arguments.num_prompts is not None and arguments.num_prompts < 1:
        raise InvalidField("--num-prompts", f"{arguments.num_prompts} is less than 1")
    return tuple(dict.fromkeys(domains))


def _path(word: str | None) -> Path:
    if word is None:
        return STANDARD_PROMPTS
    path = Path(word).expanduser()
    if word.isdecimal() and not path.is_file():
        problem = f"takes a file of prompts; how many of them are asked is --num-prompts {word}"
        raise InvalidField("--prompts", problem)
    return path


def stratified(records: Sequence[PromptRecord], count: int) -> list[PromptRecord]:
    """`count` of them, as many of each category as of the others, give or take one.

    One category after the other, so that neighbours differ; a category that has run out is passed
    over. The same ones every time, and a larger count begins with the smaller one's.
    """
    generator = random.Random(_SEED)
    strata: dict[str, list[PromptRecord]] = {}
    for record in records:
        strata.setdefault(record.category, []).append(record)
    shuffled = [generator.sample(stratum, len(stratum)) for stratum in strata.values()]
    generator.shuffle(shuffled)
    longest = max((len(stratum) for stratum in shuffled), default=0)
    dealt = [s[place] for place in range(longest) for s in shuffled if place < len(s)]
    return dealt[:count]
