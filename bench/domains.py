"""Prompts by domain: held-out code and prose, made-up sums; and which of them greedy text suits.

A small model under greedy decoding soon repeats itself, and a loop is easy to draft: acceptance on
it says nothing. So greedy figures are taken on prompts alone whose greedy text does not repeat.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.in_process import Engine, Job
from bench.known_texts import KnownTexts
from bench.tables import Table
from bench.workload import read_texts
from draft_node.training.evaluate import distinct_ratio
from specserve.errors import InvalidField
from specserve.models.tokenizer_files import load_tokenizer

ARITHMETIC = "arithmetic"
DOMAINS = ("code", "prose", ARITHMETIC)
CHECKED_TOKENS = 64  # of a greedy continuation
MIN_DISTINCT = 0.8  # share of its n-grams ...
_ORDER = 4  # ... of so many tokens
MIN_GREEDY_PROMPTS = 10  # with fewer there is no figure
_SUMS = 10  # lines of an arithmetic prompt
_LARGEST = 99


class GreedyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a domain's prompts have greedy continuations that do not repeat themselves."""

    domain: str
    num_candidates: int
    qualifying: list[int]  # by place among the candidates

    @property
    def share(self) -> float:
        return len(self.qualifying) / self.num_candidates

    def is_measurable(self, least: int) -> bool:
        return len(self.qualifying) >= least


def draw_prompts(domain: str, target: Path, count: int, *, seed: int = 0) -> list[list[int]]:
    """`count` prompts as the target's token ids; a larger count begins with the same ones.

    Held-out texts are taken from the end of the collection, since calibration begins at its front.
    Raises InvalidField if there are too few.
    """
    texts = _sums(count, seed) if domain == ARITHMETIC else read_texts(domain)[::-1][:count]
    if len(texts) < count:
        raise InvalidField("--num-prompts", f"{domain} has only {len(texts)}")
    tokenizer = load_tokenizer(target)
    return [list(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]


def _sums(count: int, seed: int) -> list[str]:
    """Texts of lines such as `17 + 5 = 22`."""
    generator = random.Random(seed)

    def line() -> str:
        a, b = generator.randint(1, _LARGEST), generator.randint(1, _LARGEST)
        return f"{a} + {b} = {a + b}\n"

    return ["".join(line() for _ in range(_SUMS)) for _ in range(count)]


def known_texts(target: Path) -> KnownTexts:
    """What earlier runs found out about greedy text of the model in `target`."""
    return KnownTexts.of(target, (CHECKED_TOKENS, MIN_DISTINCT, _ORDER))


def check_greedy(
    domain: str,
    prompts: Sequence[Sequence[int]],
    plain: Engine,
    batch_size: int,
    known: KnownTexts,
) -> GreedyCheck:
    """Continue prompts not `known` greedily without drafts, and see which texts do not repeat."""
    unknown = [prompt for prompt in prompts if known.get(prompt) is None]
    for first in range(0, len(unknown), batch_size):
        batch = unknown[first : first + batch_size]
        job = Job(batch, seeds=[0] * len(batch), num_tokens=CHECKED_TOKENS, temperature=0.0)
        answers = plain.run(job).answers
        known.add(batch, [distinct_ratio(a.token_ids, _ORDER) >= MIN_DISTINCT for a in answers])
    qualifying = [place for place, prompt in enumerate(prompts) if known.get(prompt)]
    return GreedyCheck(domain=domain, num_candidates=len(prompts), qualifying=qualifying)


def greedy_table(checks: Sequence[GreedyCheck], least: int) -> Table:
    """What was found of greedy texts, and whether `least` prompts were left to measure on."""
    rows = [
        (
            check.domain, check.num_candidates, len(check.qualifying), f"{check.share:.1%}",
            "yes" if check.is_measurable(least) else f"no, fewer than {least}",
        )
        for check in checks
    ]  # fmt: skip
    note = (
        f"Greedy figures use only prompts whose plain continuation of {CHECKED_TOKENS} tokens has "
        f"{MIN_DISTINCT:.0%} or more distinct 4-grams: loops are easy to draft and say nothing."
    )
    header = ("domain", "prompts checked", "sound", "share", "measured at temperature 0")
    return Table("Greedy text", header, rows, note)
