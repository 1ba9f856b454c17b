# pyright: strict
"""How much `bench.drafters` measures, under which conditions, and how long they were trained."""

from pathlib import Path

import msgspec

from bench.domains import CHECKED_TOKENS, MIN_GREEDY_PROMPTS
from bench.prompt_choice import MAX_TOKENS
from specserve.errors import InvalidField
from specserve.sampling.verification.method import VerificationMethod

RATIO_METHODS = (VerificationMethod.FORESEEABLE, VerificationMethod.COUPLED)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in tokens; counts of prompts are per domain."""

    num_prompts: int
    num_candidates: int  # of which those with sound greedy text are taken at temperature 0
    num_tokens: int  # of an answer
    gamma: int
    gammas: tuple[int, ...]  # limits of the gamma sweep, beside `gamma`
    thresholds: tuple[float, ...]  # of survival, beside 0
    calibration_tokens: int  # of the texts that confidences are evaluated on
    temperatures: tuple[float, ...] = (1.0, 0.0)
    methods: tuple[VerificationMethod, ...] = RATIO_METHODS  # at temperatures above 0
    domains: tuple[str, ...] = ()  # of held-out texts; none: prompts are asked
    ignore_eos: bool = True
    min_greedy_prompts: int = MIN_GREEDY_PROMPTS
    batch_size: int = 16  # rows side by side, which changes no text

    @property
    def longest_answer(self) -> int:
        """Tokens, the check of greedy texts included."""
        return max(self.num_tokens, CHECKED_TOKENS)

    def check(self) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least in (
            ("--num-prompts", self.num_prompts, 1),
            ("--candidates", self.num_candidates, self.num_prompts),
            ("--max-tokens", self.num_tokens, self.gamma + 2),  # else no round is whole
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")
        for limit in self.gammas:
            if not 1 <= limit <= self.gamma:
                raise InvalidField("--gammas", f"{limit} is not between 1 and --gamma {self.gamma}")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What one figure was measured under."""

    domain: str
    temperature: float
    method: VerificationMethod
    max_verify_len: int
    min_survival: float = 0.0

    @property
    def method_name(self) -> str:
        """At temperature 0 all methods are one."""
        return self.method if self.temperature else "any"


FULL = Plan(
    num_prompts=50,
    num_candidates=200,
    num_tokens=MAX_TOKENS,
    gamma=7,
    gammas=(1, 2, 3, 5),
    thresholds=(0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    calibration_tokens=128,
)
QUICK = msgspec.structs.replace(
    FULL,
    num_prompts=8,
    num_candidates=24,
    num_tokens=32,
    gammas=(1, 3),
    thresholds=(0.1, 0.5),
    calibration_tokens=32,
)


_FILE = "held_out.json"  # what `specserve train` writes beside the weights


class TrainingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """Of the run that wrote the weights; what it went on from is not counted."""

    steps: int
    tokens: int


class _Figures(msgspec.Struct, frozen=True):
    training: TrainingBudget | None = None


def read_budget(folder: Path) -> TrainingBudget | None:
    """None for a folder that does not say."""
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=_Figures).training
    except (OSError, msgspec.DecodeError):
        return None
