# pyright: strict
"""One audit from start to report: plain answers and distributions first, then each method against
them.

Services are opened one after the other, never two at a time: a model may fill its device.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec

from specserve.access import Access
from specserve.api.events import Completion
from specserve.audit.asking import Asker, Progress
from specserve.audit.cases import Case, cases_of
from specserve.audit.equality import compare, drafted_answers, plain_answers
from specserve.audit.long_answers import logprob_check
from specserve.audit.places import LongAnswers
from specserve.audit.report import (
    ALLOWED,
    ALLOWED_DETERMINISTIC,
    ROUNDING,
    ROUNDING_DETERMINISTIC,
    Check,
    DistributionCheck,
    EqualityCheck,
    LogprobCheck,
    Plan,
    Report,
    Served,
    judge,
)
from specserve.audit.sampling import distribution_checks, most_drafted
from specserve.audit.workload import SeededCall, openings, seeded_calls
from specserve.errors import Unsupported

_MOST_PROMPT_TOKENS = 48  # before long answers: each answer is computed again behind them
_MOST_NAMED = 20  # tokens with a log probability, at each place of a long answer
Service = Callable[[], AbstractContextManager[Access]]  # have it running while inside


class Audited(msgspec.Struct, frozen=True):
    """One configuration, and the same with every draft verified: long answers come from there.

    Drafts are verified only where that pays; few would reach the deep places of blocks. None: the
    service as it is has to do.
    """

    as_it_is: Service
    every_draft: Service | None = None


class _Plain(msgspec.Struct, frozen=True):
    """What plain decoding says."""

    served: Served
    calls: list[SeededCall]
    answers: list[Completion]
    cases: list[Case]


class _Drafted(msgspec.Struct, frozen=True):
    """What one service that drafts says."""

    served: Served
    equal: EqualityCheck
    distributions: list[DistributionCheck]  # not yet judged, as those of long answers


class _Long(msgspec.Struct, frozen=True):
    """What long answers say."""

    logprobs: LogprobCheck
    distributions: list[DistributionCheck]


def run_audit(
    plan: Plan, reference: Service, audited: Sequence[Audited], progress: Progress
) -> Report:
    """Ask, compare, judge. Raises SpecserveError when a service fails or cannot be audited."""
    with reference() as access:
        plain = asyncio.run(_plain(plan, access, progress))
    exact: list[Check] = []
    sampled: list[DistributionCheck] = []
    served = plain.served
    for each in audited:
        found, long = _asked(plan, plain, each, progress)
        served = found.served
        exact += (found.equal, long.logprobs)
        sampled += (*found.distributions, *long.distributions)
    checks = [*exact, *judge(sampled)]
    return Report(served=served, reference=plain.served.speculation, checks=checks)


def _asked(
    plan: Plan, plain: _Plain, audited: Audited, progress: Progress
) -> tuple[_Drafted, _Long]:
    with audited.as_it_is() as access:
        found = asyncio.run(_drafted(plan, plain, access, progress))
        if audited.every_draft is None:
            return found, asyncio.run(_long_answers(plan, plain.cases, access, progress))
    with audited.every_draft() as access:
        return found, asyncio.run(_long_answers(plan, plain.cases, access, progress))


async def _plain(plan: Plan, access: Access, progress: Progress) -> _Plain:
    calls = seeded_calls(plan.num_requests, plan.seed)
    async with Asker(access, progress) as asker:
        return _Plain(
            served=await asker.served(),
            calls=calls,
            answers=await plain_answers(asker, calls),
            cases=await cases_of(asker, openings(plan.num_candidates, plan.seed)),
        )


async def _drafted(plan: Plan, plain: _Plain, access: Access, progress: Progress) -> _Drafted:
    async with Asker(access, progress) as asker:
        served = await asker.served()
        if served.speculation == "off":
            raise Unsupported(
                f"the service at {access.address} does not speculate: nothing to audit"
            )
        answers = await drafted_answers(asker, plain.calls, plan.seed)
        promised = plain.served.deterministic and served.deterministic
        method = served.verification
        equal = compare(plain.answers, answers, method=method, promised=promised)
        chosen = await most_drafted(asker, plain.cases, plan.num_prompts)
        rng = random.Random(plan.seed)
        distributions = await distribution_checks(
            asker, chosen, method=method, num_samples=plan.num_samples, rng=rng
        )
    return _Drafted(served, equal, distributions)


async def _long_answers(
    plan: Plan, cases: Sequence[Case], access: Access, progress: Progress
) -> _Long:
    async with Asker(access, progress) as asker:
        served = await asker.served()
        method, rounding, allowed = served.verification, ROUNDING, ALLOWED
        if served.deterministic:
            rounding, allowed = ROUNDING_DETERMINISTIC, ALLOWED_DETERMINISTIC
        asked = LongAnswers(
            asker,
            list(dict.fromkeys(case.prompt[-_MOST_PROMPT_TOKENS:] for case in cases)),
            num_answers=plan.num_long_answers,
            num_named=min(_MOST_NAMED, await asker.max_logprobs()),
            rounding=rounding,
            rng=random.Random(plan.seed),
        )
        distributions = await asked.checks(method=method, gamma=served.gamma)
    found = logprob_check(asked.answers, method=method, rounding=rounding, allowed=allowed)
    return _Long(found, distributions)
