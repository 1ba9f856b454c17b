"""The requests that are alive on the target: their samples, times, and the one way they end."""

import time
from dataclasses import dataclass
from itertools import zip_longest

from specserve.errors import SpecserveError
from specserve.types import (
    Request,
    RequestEnd,
    RequestStats,
    Terminal,
)
from target_node.sequence import Sequence


@dataclass(eq=False)
class LiveRequest:
    """One accepted request and its samples. Times are CLOCK_MONOTONIC seconds."""

    request: Request
    sequences: list[Sequence]
    arrived_s: float
    started_s: float | None = None  # first forward
    prefilled_s: float | None = None  # first generated token

    @classmethod
    def of(cls, request: Request, arrival: int) -> "LiveRequest":
        return cls(request, [Sequence(request, sample_index=0, arrival=arrival)], time.monotonic())

    def start_others(self) -> list[Sequence]:
        """Samples 1..n-1, once sample 0 has left the prompt in the prefix cache; else none."""
        first = self.sequences[0]
        if len(self.sequences) == self.request.sampling.n or not first.num_generated:
            return []
        others = [
            Sequence(self.request, i, first.arrival, grammar=first.grammar)
            for i in range(1, self.request.sampling.n)
        ]
        self.sequences += others
        return others

    @property
    def is_finished(self) -> bool:
        return len(self.sequences) == self.request.sampling.n and all(
            sequence.finish_reason is not None for sequence in self.sequences
        )

    def mark_started(self, now_s: float) -> None:
        """A forward with one of its tokens begins; the first one ends the queueing."""
        if self.started_s is None:
            self.started_s = now_s

    def mark_prefilled(self, now_s: float) -> None:
        """A token was sampled; the first one ends the prefill."""
        if self.prefilled_s is None:
            self.prefilled_s = now_s

    def end(self, terminal: Terminal, error: str = "", code: str = "") -> RequestEnd:
        """The terminal record, with the counts of all samples."""
        now_s = time.monotonic()
        started_s = self.started_s if self.started_s is not None else now_s
        prefilled_s = self.prefilled_s if self.prefilled_s is not None else now_s
        positions = [s.num_accepted_per_position for s in self.sequences]
        stats = RequestStats(
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.sequences[0].num_cached,
            num_generated_tokens=sum(s.num_generated for s in self.sequences),
            num_preemptions=sum(s.num_preemptions for s in self.sequences),
            num_rounds=sum(s.num_rounds for s in self.sequences),
            num_drafts=sum(s.num_drafts for s in self.sequences),
            num_drafted_tokens=sum(s.num_drafted_tokens for s in self.sequences),
            num_accepted_tokens=sum(map(sum, positions)),
            num_accepted_per_position=list(map(sum, zip_longest(*positions, fillvalue=0))),
            queue_s=started_s - self.arrived_s,
            prefill_s=prefilled_s - started_s,
            decode_s=now_s - prefilled_s,
        )
        return RequestEnd(self.request.request_id, terminal, stats, error, code)


def rejection(request: Request, error: SpecserveError) -> RequestEnd:
    """The terminal record of a request that was never accepted."""
    stats = RequestStats(num_prompt_tokens=len(request.prompt_token_ids))
    return RequestEnd(request.request_id, Terminal.REJECTED, stats, str(error), error.code)
