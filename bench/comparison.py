# pyright: strict
"""The interleaved run: every repetition gives the same batch to each arm in turn, then the next.

A repetition's arms follow each other within seconds and their order rotates, so that a slower spell
of the machine meets all of them. What is measured first in each arm is thrown away (warm-up).
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from bench.processes import Usage
from bench.records import (
    BatchTrace,
    ForwardJob,
    ForwardTimes,
    GenerateJob,
    RoundJob,
    RoundTimes,
)
from bench.workload import Workload

ARMS = ("served", "transformers", "bare")
_WARM_UP_TOKENS = 8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure. Lengths in tokens."""

    batch_sizes: tuple[int, ...]
    num_tokens: int
    num_repetitions: int
    num_sampled_repetitions: int
    prefill_lens: tuple[int, ...]
    num_prefill_repetitions: int
    max_prompt_len: int = 1024  # of the decode batches; longer prompts are cut
    budget_s: float | None = None  # after that long, only what has no figure yet is measured

    @property
    def num_measurements(self) -> int:
        """Steps of the progress bar."""
        decode = self.num_repetitions + self.num_sampled_repetitions
        prefill = self.num_prefill_repetitions * len(self.prefill_lens)
        return len(self.batch_sizes) * (decode + 1) + prefill


class GenerateArm(Protocol):
    def ask(self, job: GenerateJob) -> BatchTrace: ...


class ForwardArm(Protocol):
    def ask(self, job: ForwardJob | RoundJob) -> ForwardTimes | RoundTimes: ...


class Triple(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition: the same batch by all three arms."""

    batch_size: int
    prompt_lens: list[int]
    temperature: float
    served: BatchTrace
    transformers: BatchTrace
    bare: ForwardTimes
    reported_round_s: float  # the service's own average of a decode round, right after

    @property
    def is_side_by_side(self) -> bool:
        return self.served.is_side_by_side and self.transformers.is_side_by_side

    @property
    def waited_share(self) -> float:
        """The largest share of an arm's time in which it was ready but had no core."""
        served = self.served.usage.get("target", Usage()).waited_s / self.served.total_s
        other = self.transformers.usage.get("transformers", Usage()).waited_s
        bare_s = sum(self.bare.steps_s) + self.bare.prompt_s
        return max(served, other / self.transformers.total_s, self.bare.usage.waited_s / bare_s)


class Measurements(msgspec.Struct, kw_only=True):
    """All there is to summarise."""

    decode: list[Triple] = []
    prefill: list[Triple] = []
    rounds: dict[int, RoundTimes] = {}  # by batch size


class Comparison:
    """Runs a plan over the three arms."""

    def __init__(
        self,
        *,
        served: GenerateArm,
        transformers: GenerateArm,
        bare: ForwardArm,
        reported_round_s: Callable[[], float],
        workload: Workload,
        advance: Callable[[str], None],
    ) -> None:
        """`advance` is told what comes next, outside of every measurement."""
        self._served = served
        self._transformers = transformers
        self._bare = bare
        self._reported_round_s = reported_round_s
        self._workload = workload
        self._advance = advance
        self._turn = 0
        self._started_s = time.monotonic()

    def run(self, plan: Plan) -> Measurements:
        found = Measurements()
        self._started_s = time.monotonic()
        self._warm_up(plan)
        temperatures = [0.0] * plan.num_repetitions + [1.0] * plan.num_sampled_repetitions
        for repetition, temperature in enumerate(temperatures):
            first = repetition in (0, plan.num_repetitions)
            for size in plan.batch_sizes:
                if not first and self._is_late(plan):
                    continue
                self._advance(f"batch {size}, repetition {repetition + 1}/{len(temperatures)}")
                job = GenerateJob(
                    prompts=self._workload.batch(size, plan.max_prompt_len),
                    num_tokens=plan.num_tokens,
                    temperature=temperature,
                )
                found.decode.append(self._triple(job))
        for repetition in range(plan.num_prefill_repetitions):
            for length in plan.prefill_lens:
                if repetition and self._is_late(plan):
                    continue
                self._advance(f"prefill of {length} tokens")
                prompts = [self._workload.long_prompt(length)]
                found.prefill.append(self._triple(GenerateJob(prompts=prompts, num_tokens=1)))
        for size in plan.batch_sizes:
            self._advance(f"stages of a round, batch {size}")
            found.rounds[size] = self._rounds(size, plan)
        return found

    def _warm_up(self, plan: Plan) -> None:
        """Kernels, memory and connections: the first call of any size is slower than the rest."""
        for size in plan.batch_sizes:
            prompts = self._workload.batch(size, plan.max_prompt_len)
            self._triple(GenerateJob(prompts=prompts, num_tokens=_WARM_UP_TOKENS))
        for length in plan.prefill_lens:
            prompts = [self._workload.long_prompt(length)]
            self._triple(GenerateJob(prompts=prompts, num_tokens=1))

    def _triple(self, job: GenerateJob) -> Triple:
        traces: dict[str, BatchTrace] = {}
        forwards: list[ForwardTimes] = []
        reported_s = 0.0
        for arm in self._order():
            if arm == "served":
                traces[arm] = self._served.ask(job)
                reported_s = self._reported_round_s()
            elif arm == "transformers":
                traces[arm] = self._transformers.ask(job)
            else:
                forwards.append(self._forwards(job))
        return Triple(
            batch_size=job.batch_size,
            prompt_lens=job.prompt_lens,
            temperature=job.temperature,
            served=traces["served"],
            transformers=traces["transformers"],
            bare=forwards[0],
            reported_round_s=reported_s,
        )

    def _order(self) -> Iterable[str]:
        self._turn += 1
        first = self._turn % len(ARMS)
        return ARMS[first:] + ARMS[:first]

    def _forwards(self, job: GenerateJob) -> ForwardTimes:
        reply = self._bare.ask(ForwardJob(prompt_lens=job.prompt_lens, num_tokens=job.num_tokens))
        assert isinstance(reply, ForwardTimes)
        return reply

    def _is_late(self, plan: Plan) -> bool:
        elapsed_s = time.monotonic() - self._started_s
        return plan.budget_s is not None and elapsed_s > plan.budget_s

    def _rounds(self, size: int, plan: Plan) -> RoundTimes:
        lens = [len(prompt) for prompt in self._workload.batch(size, plan.max_prompt_len)]
        reply = self._bare.ask(RoundJob(prompt_lens=lens, num_tokens=plan.num_tokens))
        assert isinstance(reply, RoundTimes)
        return reply
