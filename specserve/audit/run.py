# pyright: strict
"""One audit from start to report: plain answers and laws first, then each rule against them.

Services are opened one after the other, never two at a time: a model may fill its device.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec

from specserve.api.completion import Completion
from specserve.audit.asking import Asker, Progress
from specserve.audit.cases import Case, cases_of
from specserve.audit.equality import compare, drafted_answers, plain_answers
from specserve.audit.report import Check, EqualityCheck, LawCheck, Plan, Report, Served, judge
from specserve.audit.sampling import law_checks, most_drafted
from specserve.audit.workload import SeededCall, openings, seeded_calls
from specserve.errors import Unsupported

Service = Callable[[], AbstractContextManager[str]]  # have it running: host:port while inside


class _Plain(msgspec.Struct, frozen=True):
    """What plain decoding says."""

    served: Served
    calls: list[SeededCall]
    answers: list[Completion]
    cases: list[Case]


def run_audit(
    plan: Plan, reference: Service, audited: Sequence[Service], progress: Progress
) -> Report:
    """Ask, compare, judge. Raises SpecserveError when a service fails or cannot be audited."""
    with reference() as address:
        plain = asyncio.run(_plain(plan, address, progress))
    equal: list[EqualityCheck] = []
    sampled: list[LawCheck] = []
    served = plain.served
    for service in audited:
        with service() as address:
            served, found, laws = asyncio.run(_drafted(plan, plain, address, progress))
        equal.append(found)
        sampled += laws
    checks: list[Check] = [*equal, *judge(sampled)]
    return Report(served=served, reference=plain.served.speculation, checks=checks)


async def _plain(plan: Plan, address: str, progress: Progress) -> _Plain:
    calls = seeded_calls(plan.num_requests, plan.seed)
    async with Asker(address, progress) as asker:
        return _Plain(
            served=await asker.served(),
            calls=calls,
            answers=await plain_answers(asker, calls),
            cases=await cases_of(asker, openings(plan.num_candidates, plan.seed)),
        )


async def _drafted(
    plan: Plan, plain: _Plain, address: str, progress: Progress
) -> tuple[Served, EqualityCheck, list[LawCheck]]:
    async with Asker(address, progress) as asker:
        served = await asker.served()
        if served.speculation == "off":
            raise Unsupported(f"the service at {address} does not speculate: nothing to audit")
        answers = await drafted_answers(asker, plain.calls, plan.seed)
        promised = plain.served.deterministic and served.deterministic
        rule = served.verification
        equal = compare(plain.answers, answers, rule=rule, promised=promised)
        chosen = await most_drafted(asker, plain.cases, plan.num_prompts)
        sampled = await law_checks(
            asker,
            chosen,
            rule=rule,
            num_samples=plan.num_samples,
            rng=random.Random(plan.seed),
        )
    return served, equal, sampled
