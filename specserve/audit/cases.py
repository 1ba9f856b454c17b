# pyright: strict
"""Prompts with the exact distribution of their answers, which a service itself gives away.

It comes from plain decoding: one request for a single token after every prefix of a small tree,
with log probabilities, which are the target's before any truncation. Three tokens deep, because the
first of an answer is never drafted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from specserve.audit.asking import PLAIN, Asker
from specserve.audit.sequence_distribution import Prefix, SequenceDistribution
from specserve.client import Options
from specserve.types import Logprobs

DEPTH = 3  # tokens
WIDTH = 3  # tokens named after each prefix
_MAX_PROMPT_TOKENS = 120
_ECHOED_TOKENS = 4


@dataclass(frozen=True)
class Variant:
    """How answers are sampled, and what that makes of the target's log probabilities."""

    name: str
    options: Options

    def next_distribution(self, record: Logprobs) -> dict[int, float]:
        """Probabilities of the `WIDTH` likeliest tokens."""
        ids, logprobs = record.top_ids, record.top_logprobs
        if not self.options.get("top_k"):
            return {i: exp(value) for i, value in zip(ids, logprobs, strict=True)}
        temperature = self.options.get("temperature", 1.0)
        weights = [exp((value - logprobs[0]) / temperature) for value in logprobs]
        return {i: weight / sum(weights) for i, weight in zip(ids, weights, strict=True)}


VARIANTS = (
    Variant("the whole distribution", {}),
    Variant("top 3, temperature 0.7", {"temperature": 0.7, "top_k": WIDTH}),
)


@dataclass(frozen=True)
class Case:
    """A prompt under one variant, with the distribution of its answers."""

    text: str
    prompt: tuple[int, ...]
    variant: Variant
    distribution: SequenceDistribution


async def cases_of(asker: Asker, texts: Sequence[str]) -> list[Case]:
    """Every text under every variant."""
    work = [_prompt(asker, text, echo=bool(place % 2)) for place, text in enumerate(texts)]
    prompts = await asker.all_of("prompts", work)
    found = [(text, ids) for text, ids in zip(texts, prompts, strict=True) if ids]
    trees: list[dict[Prefix, Logprobs]] = [{} for _ in found]
    level: list[tuple[int, Prefix]] = [(place, ()) for place in range(len(found))]
    for depth in range(DEPTH):
        work = [_next_logprobs(asker, (*found[place][1], *prefix)) for place, prefix in level]
        records = await asker.all_of(f"the distribution of token {depth + 1}", work)
        for (place, prefix), record in zip(level, records, strict=True):
            trees[place][prefix] = record
        level = [
            (place, (*prefix, token_id))
            for place, prefix in level
            for token_id in trees[place][prefix].top_ids
        ]
    return [
        Case(
            text,
            ids,
            variant,
            SequenceDistribution({k: variant.next_distribution(r) for k, r in tree.items()}),
        )
        for (text, ids), tree in zip(found, trees, strict=True)
        for variant in VARIANTS
    ]


async def _prompt(asker: Asker, text: str, *, echo: bool) -> tuple[int, ...]:
    """A prompt of the text's tokens, without the first, whose id nobody tells; perhaps empty.

    With `echo` it opens with its own end, continued in the `WIDTH` likeliest ways: only then has a
    prompt lookup something to draft, whatever comes first.
    """
    answer = await asker.generate(text, {"max_tokens": 1, "prompt_logprobs": 0}, PLAIN)
    ids = tuple(r.token_id for r in answer.prompt.prompt_logprobs[:_MAX_PROMPT_TOKENS])
    if not echo or not ids:
        return ids
    echoes: list[int] = []
    for token_id in (await _next_logprobs(asker, ids)).top_ids:
        follower = await _next_logprobs(asker, (*ids, token_id))
        echoes += (*ids[-_ECHOED_TOKENS:], token_id, follower.top_ids[0])
    return (*echoes, *ids)


async def _next_logprobs(asker: Asker, token_ids: Sequence[int]) -> Logprobs:
    answer = await asker.generate(token_ids, {"max_tokens": 1, "logprobs": WIDTH}, PLAIN)
    (record,) = answer.samples[0].logprobs or []
    return record
