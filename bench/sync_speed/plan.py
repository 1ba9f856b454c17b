# pyright: strict
"""How much `bench.sync_speed` measures."""

import msgspec

from bench.domains import MIN_GREEDY_PROMPTS
from bench.prompt_choice import MAX_TOKENS
from specserve.errors import InvalidField
from specserve.sampling.verification.method import VerificationMethod

_LEAST_GROUPS = 4


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A group is the prompts that are continued side by side: one at batch 1."""

    ballasts: tuple[str, ...]  # sizes in parameters, or "none"
    batch_sizes: tuple[int, ...]
    temperatures: tuple[float, ...]
    domains: tuple[str, ...]  # of held-out texts; none: prompts are asked
    num_groups: int  # at batch 1
    num_tokens: int  # of an answer, at most
    ignore_eos: bool = True  # exactly so many
    num_candidates: int  # prompts a domain, of which greedy decoding takes those with sound text
    methods: tuple[VerificationMethod, ...] = tuple(VerificationMethod)  # at temperatures above 0
    min_greedy_prompts: int = MIN_GREEDY_PROMPTS

    def groups_of(self, batch_size: int) -> int:
        """Larger batches hold more prompts, and take longer."""
        return max(min(_LEAST_GROUPS, self.num_groups), self.num_groups // batch_size)

    def check(self, gamma: int) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least in (
            ("--batch-sizes", min(self.batch_sizes), 1),
            ("--num-prompts", self.num_groups, 1),
            ("--max-tokens", self.num_tokens, gamma + 2),
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")


FULL = Plan(
    ballasts=("30M", "100M"),
    batch_sizes=(1, 4, 16),
    temperatures=(1.0, 0.0),
    domains=(),
    num_groups=26,
    num_tokens=MAX_TOKENS,
    num_candidates=200,
)
QUICK = msgspec.structs.replace(
    FULL,
    ballasts=("30M",),
    batch_sizes=(1,),
    num_groups=6,
    num_tokens=32,
    num_candidates=48,
)
