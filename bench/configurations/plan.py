# pyright: strict
"""How much `bench.configurations` measures."""

import msgspec

from bench.prompt_choice import MAX_TOKENS
from bench.regimes.plan import LEAST_TOKENS
from specserve.errors import InvalidField
from specserve.sampling.verification.method import VerificationMethod


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One request at a time; lengths in tokens."""

    num_prompts: int  # of those, conversations count once
    max_tokens: int = MAX_TOKENS  # of an answer
    temperatures: tuple[float, ...] = (0.0, 1.0)
    methods: tuple[VerificationMethod, ...] = (
        VerificationMethod.FORESEEABLE,
        VerificationMethod.COUPLED,
    )
    num_passes: int  # in each of which every arm is started once
    warm_up_s: float  # of every arm, sampling and pass: what is done about misses is learned
    sampling: dict[str, float] = {}

    def check(self) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least in (
            ("--max-tokens", self.max_tokens, LEAST_TOKENS),
            ("--temperatures", min(self.temperatures), 0),
            ("--passes", self.num_passes, 1),
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")


FULL = Plan(num_prompts=13, num_passes=3, warm_up_s=20.0)
QUICK = Plan(num_prompts=2, max_tokens=32, num_passes=1, warm_up_s=0.0)
