"""Logits of a round's rows to tokens and log probabilities, on rank 0.

Owns the sampling state of every live sequence, so that the noise of a token depends on the request
and the token's position alone: not on the batch, the chunking, preemption or the number of ranks.
"""

import enum
import itertools
from dataclasses import dataclass, field

import torch

from specserve.decoding.batch import SamplingBatch
from specserve.decoding.logprobs import token_logprobs
from specserve.decoding.sampling import NO_TOKEN, sample
from specserve.decoding.state import SamplingState
from specserve.types import Logprobs
from target_node.scheduler import Row
from target_node.sequence import Sequence


class Fault(enum.Enum):
    """Why no token could be drawn."""

    NOT_FINITE = "the model produced logits that are not finite"
    NO_TOKEN_LEFT = "penalties, bias and suppressed tokens leave no token that can be sampled"


@dataclass
class SampledRow:
    """What a round found for one row; `token_id` is NO_TOKEN where nothing was sampled."""

    token_id: int = NO_TOKEN
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: list[Logprobs] = field(default_factory=list)


@dataclass(frozen=True)
class _Wanted:
    """One position whose log probabilities somebody asked for."""

    logits_row: int
    token_id: int
    num_top: int
    result: SampledRow
    is_prompt: bool


class Sampler:
    """Samples the rows of a round; see `specserve.decoding.sampling` for the definition."""

    def __init__(self, *, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self.eos_token_ids = eos_token_ids
        self.device = device
        self._states: dict[Sequence, SamplingState] = {}

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._states.pop(sequence, None)

    @torch.inference_mode()
    def sample(self, rows: list[Row], logits: torch.Tensor | None) -> list[SampledRow]:
        """One result a row. `logits` [sum of num_logits, V] float32, in the order of `rows`."""
        results = [SampledRow() for _ in rows]
        if logits is None:
            return results
        ends = list(itertools.accumulate(row.num_logits for row in rows))
        sampling = [i for i, row in enumerate(rows) if row.samples]
        if sampling:
            last = [ends[i] - 1 for i in sampling]
            drawn_from = logits if last == list(range(len(logits))) else logits[last]
            self._draw(
                [rows[i].sequence for i in sampling], drawn_from, [results[i] for i in sampling]
            )
        wanted = [
            w
            for row, end, result in zip(rows, ends, results, strict=True)
            for w in _wanted(row, end, result)
        ]
        if wanted:
            self._report(wanted, logits)
        return results

    def _draw(
        self, sequences: list[Sequence], logits: torch.Tensor, results: list[SampledRow]
    ) -> None:
        states = [self._state(sequence) for sequence in sequences]
        sampled = sample(logits, SamplingBatch.build(states, self.device))
        token_ids, bad_rows = sampled.token_ids.tolist(), sampled.bad_rows.tolist()
        for state, result, token_id, is_bad in zip(
            states, results, token_ids, bad_rows, strict=True
        ):
            result.token_id = token_id
            if not is_bad:
                state.append(token_id)
        for i in (i for i, is_bad in enumerate(bad_rows) if is_bad):
            is_model = not logits[i].amax().isfinite()
            results[i].fault = Fault.NOT_FINITE if is_model else Fault.NO_TOKEN_LEFT

    def _state(self, sequence: Sequence) -> SamplingState:
        state = self._states.get(sequence)
        if state is None:
            request = sequence.request
            state = SamplingState(
                request.sampling,
                seed=request.seed,
                prompt_token_ids=request.prompt_token_ids,
                sample_index=sequence.sample_index,
                end_token_ids=() if request.sampling.ignore_eos else self.eos_token_ids,
            )
            self._states[sequence] = state
        return state

    def _report(self, wanted: list[_Wanted], logits: torch.Tensor) -> None:
        records = token_logprobs(
            logits[[w.logits_row for w in wanted]],
            [w.token_id for w in wanted],
            [w.num_top for w in wanted],
        )
        for w, record in zip(wanted, records, strict=True):
            if w.is_prompt:
                w.result.prompt_logprobs.append(record)
            else:
                w.result.logprobs = record


def _wanted(row: Row, end: int, result: SampledRow) -> list[_Wanted]:
    """The positions of `row` that owe log probabilities; its last logits are at `end` - 1."""
    sequence, sampling = row.sequence, row.sequence.request.sampling
    wanted: list[_Wanted] = []
    if sequence.owes_prompt_logprobs:
        top = sampling.prompt_logprobs or 0
        stop = sequence.num_computed + row.num_tokens
        for position in range(stop - row.num_logits, min(stop, sequence.num_prompt - 1)):
            token_id = sequence.token_ids[position + 1]
            wanted.append(_Wanted(end - stop + position, token_id, top, result, is_prompt=True))
    if row.samples and sampling.logprobs is not None and result.fault is None:
        wanted.append(_Wanted(end - 1, result.token_id, sampling.logprobs, result, is_prompt=False))
    return wanted
