# pyright: strict
"""Log probabilities of unseeded answers: those of the target, whichever row they came from."""

from collections.abc import Sequence

from specserve.audit.equality import origins_of
from specserve.audit.long_answers import ScoredAnswer
from specserve.audit.report import LogprobCheck
from specserve.types import Logprobs


def logprob_check(
    answers: Sequence[ScoredAnswer], *, rule: str, rounding: float, allowed: float
) -> LogprobCheck:
    """Each token's, and those of its alternatives, against the target's for the same tokens."""
    gaps = [
        _gap(reported, record)
        for answer in answers
        for reported, record in zip(answer.sample.logprobs or [], answer.records, strict=True)
    ]
    return LogprobCheck(
        rule=rule,
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
