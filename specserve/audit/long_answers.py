# pyright: strict
"""Long unseeded answers, and what the target itself says of each of their tokens.

It says so when it gets the answer as a prompt: no draft, no round and no row of speculation has
anything to do with that. An answer's own log probabilities have to be the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specserve.api.call import SpecOptions
from specserve.api.events import CompletedSample
from specserve.audit.asking import PLAIN, Asker
from specserve.audit.equality import origins_of
from specserve.audit.report import ANSWER_TOKENS, LogprobCheck
from specserve.audit.token_distribution import SamplingCase
from specserve.client import Options
from specserve.types import Logprobs

NUM_REPORTED = 2  # alternatives that come with each token of an answer
SAMPLES_A_REQUEST = 8
_SPECULATIVE = SpecOptions()


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer with the target's record for each of its tokens."""

    sample: CompletedSample
    records: list[Logprobs]


async def long_answers(
    asker: Asker, prompts: Sequence[tuple[int, ...]], case: SamplingCase, num_named: int
) -> list[list[ScoredAnswer]]:
    """`SAMPLES_A_REQUEST` answers to each prompt, their records with `num_named` alternatives."""
    options: Options = {
        **case.options,
        "n": SAMPLES_A_REQUEST,
        "max_tokens": ANSWER_TOKENS,
        "ignore_eos": True,
        "logprobs": NUM_REPORTED,
    }
    work = [asker.generate(prompt, options, _SPECULATIVE) for prompt in prompts]
    answers = await asker.all_of(f"long answers, {case.name}", work)
    scoring = [
        _scored(asker, prompt, sample, num_named)
        for prompt, answer in zip(prompts, answers, strict=True)
        for sample in answer.samples
    ]
    scored = await asker.all_of("what the target says of them", scoring)
    size = SAMPLES_A_REQUEST
    return [scored[start : start + size] for start in range(0, len(scored), size)]


async def _scored(
    asker: Asker, prompt: tuple[int, ...], sample: CompletedSample, num_named: int
) -> ScoredAnswer:
    options: Options = {"max_tokens": 1, "prompt_logprobs": num_named}
    answer = await asker.generate((*prompt, *sample.token_ids), options, PLAIN)
    return ScoredAnswer(sample, answer.prompt.prompt_logprobs[-len(sample.token_ids) :])


def logprob_check(
    answers: Sequence[ScoredAnswer], *, method: str, rounding: float, allowed: float
) -> LogprobCheck:
    """Each token's, and those of its alternatives, against the target's for the same tokens."""
    gaps = [
        _gap(reported, record)
        for answer in answers
        for reported, record in zip(answer.sample.logprobs or [], answer.records, strict=True)
    ]
    return LogprobCheck(
        method=method,
        num_tokens=len(gaps),
        origins=origins_of([answer.sample for answer in answers]),
        num_different=sum(gap > rounding for gap in gaps),
        largest=max(gaps, default=0.0),
        rounding=rounding,
        allowed=allowed,
    )


def _gap(reported: Logprobs, record: Logprobs) -> float:
    """The largest difference. Alternatives are compared by rank: two that tie may swap."""
    ours = (reported.logprob, *reported.top_logprobs)
    theirs = (record.logprob, *record.top_logprobs[: len(reported.top_logprobs)])
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
