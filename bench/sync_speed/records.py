"""What travels between `bench.sync_speed` and its pinned child, and what is kept of it."""

import msgspec

from bench.drafter_choice import DrafterChoice
from bench.processes import Usage
from bench.rounds import Run, Turn
from specserve.sampling.verification.method import VerificationMethod

PLAIN = "plain"


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to decode; without a drafter, plainly."""

    drafter: DrafterChoice | None = None
    method: VerificationMethod = VerificationMethod.COUPLED

    @property
    def label(self) -> str:
        return PLAIN if self.drafter is None else self.drafter.label


class SpeculateJob(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that one arm continues side by side.

    `max_rows` and `max_len` are what the arm's engine is sized for, the same in all jobs.
    """

    arm: Arm
    prompts: list[list[int]]
    seeds: list[int]
    num_tokens: int
    temperature: float
    max_rows: int
    max_len: int
    ignore_eos: bool = True


class SpeculateTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What the arm did, and what the kernel counted meanwhile."""

    run: Run
    usage: Usage

    @property
    def total_s(self) -> float:
        return sum(turn.turn_s for turn in self.run.turns)

    @property
    def waited_share(self) -> float:
        """Of its time, how long it was ready but had no core."""
        return self.usage.waited_s / self.total_s

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.run.answers)

    @property
    def full_turns(self) -> list[Turn]:
        """Those in which every row decoded: none has finished, none reads its prompt."""
        num_rows = len(self.run.answers)
        return [turn for turn in self.run.turns if turn.is_decode and turn.num_rows == num_rows]

    @property
    def texts(self) -> list[list[int]]:
        return [answer.token_ids for answer in self.run.answers]
