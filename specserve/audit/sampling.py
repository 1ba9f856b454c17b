# pyright: strict
"""Unseeded answers to a prompt, drafted and verified, against their exact distribution.

Answers are longer than what is tested, so that whole blocks are verified; requests differ in how
many drafted tokens they let be verified, and in whether they find their prompt in the cache.
"""

import random
from collections.abc import Sequence

from specserve.api.call import SpecOptions
from specserve.api.events import CompletedSample
from specserve.audit.asking import Asker
from specserve.audit.cases import DEPTH, VARIANTS, Case
from specserve.audit.chi_square import Fit
from specserve.audit.equality import origins_of
from specserve.audit.report import REPEATED, SCREENING, DistributionCheck, Look, Subject
from specserve.client import Options

_SAMPLES_A_REQUEST = 16
_MAX_VERIFY_LENS = (None, None, 1, 2)
_MAX_TOKENS = (DEPTH + 1, DEPTH + 2)
_SALTED = 0.1  # share of requests that compute their prompt anew
_PROMPT_CHARS = 24  # of a prompt, as a report names it


async def most_drafted(asker: Asker, cases: Sequence[Case], count: int) -> list[Case]:
    """`count` cases of each variant: where drafts are both kept and refused most often.

    Chosen by other answers than those that are tested, so the choice cannot hide anything.
    """
    work = [_answer(asker, case, random.Random(place)) for place, case in enumerate(cases)]
    answers = await asker.all_of("where drafts matter", work)
    stakes = [_stakes(samples) for samples in answers]
    order = sorted(range(len(cases)), key=lambda place: stakes[place], reverse=True)
    ranked = [cases[place] for place in order]
    of_each = ([case for case in ranked if case.variant is variant] for variant in VARIANTS)
    return [case for ranking in of_each for case in ranking[:count]]


async def distribution_checks(
    asker: Asker, cases: Sequence[Case], *, method: str, num_samples: int, rng: random.Random
) -> list[DistributionCheck]:
    """Each case twice: the distribution of an answer, and neighbouring answers jointly."""
    checks: list[DistributionCheck] = []
    for case in cases:
        samples = await _draw(asker, case, num_samples, rng)
        looks = _looks(case, samples)
        again: dict[Subject, Look] = {}
        if any(look.p_value < SCREENING for look in looks.values()):
            again = _looks(case, await _draw(asker, case, REPEATED * num_samples, rng))
        checks += [
            DistributionCheck(
                method=method,
                subject=subject,
                sampling=case.variant.name,
                prompt=case.text[:_PROMPT_CHARS],
                origins=origins_of(samples, DEPTH),
                screening=look,
                repetition=again[subject] if look.p_value < SCREENING else None,
            )
            for subject, look in looks.items()
        ]
    return checks


def _looks(case: Case, samples: Sequence[CompletedSample]) -> dict[Subject, Look]:
    tokens = [sample.token_ids for sample in samples]
    return {
        Subject.TOKENS: _look(case.distribution.fit(tokens), len(tokens)),
        Subject.NEIGHBOURS: _look(case.distribution.pair_fit(tokens), len(tokens)),
    }


def _look(fit: Fit, num_samples: int) -> Look:
    return Look(num_samples=num_samples, num_cells=fit.num_cells, p_value=fit.p_value)


async def _draw(
    asker: Asker, case: Case, num_samples: int, rng: random.Random
) -> list[CompletedSample]:
    """At least `num_samples` answers, those of one request side by side."""
    count = -(-num_samples // _SAMPLES_A_REQUEST)
    work = [_answer(asker, case, rng) for _ in range(count)]
    answers = await asker.all_of(f"unseeded samples, {case.variant.name}", work)
    return [sample for answer in answers for sample in answer]


async def _answer(asker: Asker, case: Case, rng: random.Random) -> list[CompletedSample]:
    options: Options = {
        **case.variant.options,
        "n": _SAMPLES_A_REQUEST,
        "max_tokens": rng.choice(_MAX_TOKENS),
        "ignore_eos": True,
        "cache_salt": rng.randbytes(8).hex() if rng.random() < _SALTED else "",
    }
    spec = SpecOptions(max_verify_len=rng.choice(_MAX_VERIFY_LENS))
    answer = await asker.generate(case.prompt, options, spec)
    return answer.samples


def _stakes(samples: Sequence[CompletedSample]) -> tuple[int, int]:
    """Tokens that drafts decided either way, whichever is fewer; then, those that they decided.

    The second tells prompts apart where every draft is kept, or none is.
    """
    origins = origins_of(samples, DEPTH)
    num_refused = origins.num_verified - origins.num_accepted
    return min(origins.num_accepted, num_refused), origins.num_verified
