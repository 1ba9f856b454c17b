# pyright: strict
"""How much `bench.regimes` measures, and how requests sample."""

from collections.abc import Sequence

import msgspec

from bench.domains import MIN_GREEDY_PROMPTS
from bench.prompt_choice import MAX_TOKENS
from specserve.errors import InvalidField
from specserve.sampling.verification.method import VerificationMethod

FAMILIES = (
    "off", "sync-dspark", "sync-dflash", "sync-dels", "sync-lm", "sync-ngram", "async-dspark",
    "async-lm", "async-ngram", "auto", "two-threads", "fan-out", "miss-policy",
)  # fmt: skip
LEAST_TOKENS = 10  # of an answer: more than one round of any drafter of ours


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A group is the prompts that are continued side by side: one at batch 1."""

    families: tuple[str, ...]  # of arms
    ballasts: tuple[str, ...]  # sizes in parameters, or "none"; the first one's figures lead
    batch_sizes: tuple[int, ...]
    side_batch_sizes: tuple[int, ...]  # of all contests but that of the default drafter
    temperatures: tuple[float, ...]
    domains: tuple[str, ...]  # of held-out texts; none: prompts are asked
    methods: tuple[VerificationMethod, ...]  # at temperatures above 0
    num_prompts: int  # a domain, at batch 1; of conversations, every turn
    num_side_prompts: int  # the same where neither DSpark nor the LM is compared with sync
    least_groups: int  # of a large batch
    num_tokens: int  # of an answer, at most
    ignore_eos: bool = True  # exactly so many
    sampling: dict[str, float] = {}  # of every request, besides its temperature
    fan_outs: tuple[int, ...]  # budgets for the curves of hit rates
    fan_out_drafters: tuple[str, ...]
    num_candidates: int  # prompts a domain, of which greedy decoding takes those with sound text
    num_more_candidates: int  # from the held-out text of this installation, if those do not suffice
    min_greedy_prompts: int = MIN_GREEDY_PROMPTS
    # `auto`, and async with its misses, choose by what they have measured, as services do that have
    # run for a while, on other prompts. What looking costs is not shown: at batch 16 `auto` finds
    # the best in 14 to 20 seconds.
    warm_up_s: float = 30.0
    budget_s: float | None = None  # after that long, as little as possible of what is left

    @property
    def num_sound_wanted(self) -> int:
        """Prompts a domain for greedy decoding: two groups of the largest batch, or more."""
        return max(self.min_greedy_prompts, self.num_prompts, 2 * max(self.batch_sizes))

    def groups_of(self, batch_size: int, num_prompts: int) -> int:
        """Larger batches hold more prompts, and take longer."""
        return max(min(self.least_groups, num_prompts), num_prompts // batch_size)

    def check(self) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least in (
            ("--batch-sizes", min(self.batch_sizes), 1),
            ("--temperatures", min(self.temperatures), 0),
            ("--fan-outs", min(self.fan_outs, default=1), 1),
            ("--num-prompts", self.num_prompts, 1),
            ("--max-tokens", self.num_tokens, LEAST_TOKENS),
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")


FULL = Plan(
    families=FAMILIES,
    ballasts=("30M", "100M"),
    batch_sizes=(1, 2, 4, 8, 16),
    side_batch_sizes=(1, 4, 16),
    temperatures=(0.0, 1.0),
    domains=(),
    methods=tuple(VerificationMethod),
    num_prompts=26,
    num_side_prompts=10,
    least_groups=4,
    num_tokens=MAX_TOKENS,
    fan_outs=(2, 8, 32, 128),
    fan_out_drafters=("lm", "dspark"),
    num_candidates=200,
    num_more_candidates=2000,
)
QUICK = msgspec.structs.replace(
    FULL,
    families=tuple(family for family in FAMILIES if family != "miss-policy"),
    ballasts=("30M",),
    batch_sizes=(1, 4),
    side_batch_sizes=(1,),
    methods=(VerificationMethod.FORESEEABLE, VerificationMethod.COUPLED),
    num_prompts=5,
    num_side_prompts=3,
    least_groups=2,
    num_tokens=32,
    fan_outs=(8, 32),
    fan_out_drafters=("lm",),
    num_candidates=64,
    num_more_candidates=192,
    warm_up_s=12.0,
    budget_s=700.0,
)


SAMPLING_FIELDS = (
    "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def read_sampling(words: Sequence[str]) -> dict[str, float]:
    """Requests' own fields. Raises InvalidField."""
    found: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in SAMPLING_FIELDS:
            raise InvalidField("--sampling", f"{name!r} is none of {', '.join(SAMPLING_FIELDS)}")
        try:
            found[name] = int(value) if name == "top_k" else float(value)
        except ValueError:
            raise InvalidField("--sampling", f"{word!r} is not of the form top_p=0.9") from None
    return found
