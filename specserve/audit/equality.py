# pyright: strict
"""Seeded requests: whoever drafts, and however much is verified, the answer is one and the same."""

import random
from collections.abc import Sequence

import msgspec

from specserve.api.call import SpecOptions
from specserve.api.events import CompletedSample, Completion
from specserve.audit.asking import PLAIN, Asker
from specserve.audit.report import EqualityCheck, Origins
from specserve.audit.workload import SeededCall
from specserve.types import TokenOrigin

_MAX_VERIFY_LENS = (None, None, None, 0, 1, 2, 3, 5, 8)


async def plain_answers(asker: Asker, calls: Sequence[SeededCall]) -> list[Completion]:
    """Each answer as plain decoding gives it."""
    work = [asker.generate(call.prompt, call.options, PLAIN) for call in calls]
    return await asker.all_of("seeded requests, without drafts", work)


async def drafted_answers(asker: Asker, calls: Sequence[SeededCall], seed: int) -> list[Completion]:
    """The same requests with drafts, of which each may verify any number a round."""
    rng = random.Random(seed)
    work = [
        asker.generate(
            call.prompt, call.options, SpecOptions(max_verify_len=rng.choice(_MAX_VERIFY_LENS))
        )
        for call in calls
    ]
    return await asker.all_of("seeded requests, with drafts", work)


def compare(
    plain: Sequence[Completion], drafted: Sequence[Completion], *, method: str, promised: bool
) -> EqualityCheck:
    """All that a client sees must be equal: tokens, texts, ends and log probabilities."""
    differences = [
        f"request {place}: {difference}"
        for place, (a, b) in enumerate(zip(plain, drafted, strict=True))
        if (difference := _difference(a, b))
    ]
    samples = [sample for answer in drafted for sample in answer.samples]
    return EqualityCheck(
        method=method,
        num_requests=len(plain),
        num_tokens=sum(len(sample.token_ids) for sample in samples),
        origins=origins_of(samples),
        num_different=len(differences),
        first_difference=differences[0] if differences else "",
        promised=promised,
    )


def origins_of(samples: Sequence[CompletedSample], num_tokens: int | None = None) -> Origins:
    """Of all tokens but each sample's first, which is never drafted; of the first `num_tokens`."""
    found = [origin for sample in samples for origin in sample.origins[1:num_tokens]]
    return Origins(
        num_tokens=len(found),
        num_accepted=found.count(TokenOrigin.DRAFTED),
        num_verified=len(found) - found.count(TokenOrigin.PLAIN),
    )


def _difference(plain: Completion, drafted: Completion) -> str:
    """Where two answers part; empty if nowhere."""
    for a, b in zip(plain.samples, drafted.samples, strict=True):
        if a.token_ids != b.token_ids:
            pairs = enumerate(zip(a.token_ids, b.token_ids, strict=False))
            shorter = min(len(a.token_ids), len(b.token_ids))
            place = next((place for place, (x, y) in pairs if x != y), shorter)
            return f"token {place} of sample {a.sample_index}"
        if _visible(a) != _visible(b):
            return f"text, end or log probabilities of sample {a.sample_index}"
    if plain.prompt.prompt_logprobs != drafted.prompt.prompt_logprobs:
        return "log probabilities of the prompt"
    return ""


def _visible(sample: CompletedSample) -> dict[str, object]:
    fields = msgspec.structs.asdict(sample)
    del fields["origins"]
    return fields
