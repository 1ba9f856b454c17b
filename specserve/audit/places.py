# pyright: strict
"""Long answers, token for token, by the place that each token had in its drafted block.

A token's place follows from the tokens before it: it is one more than the number of drafted tokens
that its round has accepted so far. So it says nothing of the token, and whatever is at a place,
accepted, recovered or bonus, has the target's distribution; an error that begins deep in a block is
not diluted by the others.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specserve.audit.asking import Asker
from specserve.audit.long_answers import SAMPLES_A_REQUEST, ScoredAnswer, long_answers
from specserve.audit.report import (
    REPEATED,
    SCREENING,
    DistributionCheck,
    Look,
    Origins,
    Subject,
)
from specserve.audit.token_distribution import SamplingCase, fit
from specserve.types import TokenOrigin

SAMPLING_CASES = (
    SamplingCase("the whole distribution"),
    SamplingCase(
        "penalties, top 3, t 0.7",
        temperature=0.7,
        top_k=3,
        presence_penalty=2.0,
        frequency_penalty=1.0,
    ),
)
PLACES = {
    Subject.PLACES_1_2: range(1, 3),
    Subject.PLACES_3_4: range(3, 5),
    Subject.PLACES_FROM_5: range(5, 1 << 20),
}
_DEEP = PLACES[Subject.PLACES_FROM_5]
_NUM_CHOSEN = 2  # prompts that half of the answers go to


@dataclass(frozen=True)
class PlacedToken:
    """One token of a round that verified drafts."""

    place: int  # in its block; 1 is the first
    percentile: float
    doubt: float  # how often another than the likeliest comes there
    is_drafted: bool


def places_of(origins: Sequence[TokenOrigin]) -> list[int]:
    """The place of each token of an answer; 0 where no draft was verified."""
    places: list[int] = []
    num_accepted = 0
    for origin in origins:
        places.append(0 if origin is TokenOrigin.PLAIN else num_accepted + 1)
        num_accepted = num_accepted + 1 if origin is TokenOrigin.DRAFTED else 0
    return places


def placed_tokens(
    answer: ScoredAnswer, case: SamplingCase, rounding: float, rng: random.Random
) -> list[PlacedToken]:
    """All tokens that drafts had a part in and whose distribution is known beyond `rounding`."""
    token_ids, origins = answer.sample.token_ids, answer.sample.origins
    found: list[PlacedToken] = []
    for step, place in enumerate(places_of(origins)):
        distribution = (
            case.distribution(answer.records[step], token_ids[:step], rounding) if place else None
        )
        if distribution is None:
            continue
        percentile = distribution.percentile(token_ids[step], rng.random())
        is_drafted = origins[step] is TokenOrigin.DRAFTED
        found.append(PlacedToken(place, percentile, distribution.doubt, is_drafted))
    return found


class LongAnswers:
    """Draws long answers of one service and tests them."""

    def __init__(
        self,
        asker: Asker,
        prompts: Sequence[tuple[int, ...]],
        *,
        num_answers: int,
        num_named: int,
        rounding: float,
        rng: random.Random,
    ) -> None:
        """`num_answers` at least, under each of the sampling cases, before any repetition."""
        self._asker = asker
        self._prompts = prompts
        self._num_answers = num_answers
        self._num_named = num_named
        self._rounding = rounding
        self._rng = rng
        self.answers: list[ScoredAnswer] = []  # all so far

    async def checks(self, *, method: str, gamma: int) -> list[DistributionCheck]:
        """One for every sampling case and place that blocks of `gamma` tokens have."""
        subjects = [subject for subject, places in PLACES.items() if places.start <= gamma]
        checks: list[DistributionCheck] = []
        for case in SAMPLING_CASES:
            tokens = await self._draw(case, self._num_answers)
            looks = {subject: _look(tokens, PLACES[subject]) for subject in subjects}
            again: list[PlacedToken] = []
            if any(look.p_value < SCREENING for look in looks.values()):
                again = await self._draw(case, REPEATED * self._num_answers)
            checks += [
                DistributionCheck(
                    method=method,
                    subject=subject,
                    sampling=case.name,
                    prompt=f"{len(self._prompts)} prompts",
                    origins=_origins(tokens, PLACES[subject]),
                    screening=look,
                    repetition=_look(again, PLACES[subject]) if look.p_value < SCREENING else None,
                )
                for subject, look in looks.items()
            ]
        return checks

    async def _draw(self, case: SamplingCase, count: int) -> list[PlacedToken]:
        """Half to all prompts, half to those where an error deep in blocks would show best.

        Tokens of both halves are tested: who is asked next may depend on what was said before.
        """
        each = -(-count // (2 * SAMPLES_A_REQUEST * len(self._prompts)))
        by_prompt = await self._ask(case, [p for p in self._prompts for _ in range(each)])
        stakes = dict.fromkeys(self._prompts, 0.0)
        for prompt, tokens in by_prompt:
            stakes[prompt] += sum(token.doubt for token in tokens if token.place in _DEEP)
        chosen = sorted(stakes, key=lambda prompt: -stakes[prompt])[:_NUM_CHOSEN]
        each = -(-count // (2 * SAMPLES_A_REQUEST * len(chosen)))
        by_prompt += await self._ask(case, [p for p in chosen for _ in range(each)])
        return [token for _, tokens in by_prompt for token in tokens]

    async def _ask(
        self, case: SamplingCase, prompts: Sequence[tuple[int, ...]]
    ) -> list[tuple[tuple[int, ...], list[PlacedToken]]]:
        answers = await long_answers(self._asker, prompts, case, self._num_named)
        found: list[tuple[tuple[int, ...], list[PlacedToken]]] = []
        for prompt, scored in zip(prompts, answers, strict=True):
            self.answers += scored
            tokens = [
                token
                for answer in scored
                for token in placed_tokens(answer, case, self._rounding, self._rng)
            ]
            found.append((prompt, tokens))
        return found


def _look(tokens: Iterable[PlacedToken], places: range) -> Look:
    percentiles = [token.percentile for token in tokens if token.place in places]
    found = fit(percentiles)
    return Look(num_samples=len(percentiles), num_cells=found.num_cells, p_value=found.p_value)


def _origins(tokens: Iterable[PlacedToken], places: range) -> Origins:
    found = [token for token in tokens if token.place in places]
    num_accepted = sum(token.is_drafted for token in found)
    return Origins(num_tokens=len(found), num_accepted=num_accepted, num_verified=len(found))
