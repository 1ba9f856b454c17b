"""Logits of a round's rows to outcomes and log probabilities, on rank 0.

Owns the sampling state of every live sequence, so that the noise of a token depends on the request
and the token's position alone: not on the batch, the chunking, preemption or the number of ranks.
A decoding row without drafted tokens is verification of none.
"""

import enum
import itertools
from dataclasses import dataclass, field

import torch

from specserve.backends.base import Backend, VerifiedRows
from specserve.grammars.compiler import GrammarCompiler
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.grammar import completing
from specserve.sampling.logprobs import token_logprobs
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.commit import Commit, commit_of
from specserve.sampling.verification.method import VerificationMethod, method_for_life
from specserve.types import FinishReason, Logprobs
from target_node.scheduler import Row
from target_node.sequence import Sequence


class Fault(enum.Enum):
    """Why no token could be drawn."""

    NOT_FINITE = "the model computes NaN or infinity instead of logits; are its weights damaged?"
    NO_TOKEN_LEFT = (
        "penalties, bias, suppressed tokens and the grammar leave no token that can be sampled"
    )


@dataclass
class SampledRow:
    """What a round found for one row: the tokens it adds, the first `num_accepted` of them drafted.

    After a fault nothing follows `token_ids`; they stand, as plain decoding had emitted them.
    """

    token_ids: list[int] = field(default_factory=list)
    num_accepted: int = 0
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the token that stopped it, when one did
    fault: Fault | None = None
    is_spoiled: bool = False  # some logits were bad, perhaps of a rejected token only
    is_void: bool = False  # nothing is to be taken from it: it has to be done without drafts
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)


@dataclass(frozen=True)
class _Wanted:
    """One position of a prompt whose log probabilities somebody asked for."""

    logits_row: int
    token_id: int
    num_top: int
    found: list[Logprobs]


class Sampler:
    """Samples the rows of a round; see `specserve.sampling.sampling` for the definition."""

    def __init__(
        self,
        *,
        eos_token_ids: tuple[int, ...],
        max_model_len: int,
        backend: Backend,
        default_method: VerificationMethod = VerificationMethod.COUPLED,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`default_method` is that of requests without a seed of their own.

        `grammars`: who compiles those of requests; None: nobody can.
        """
        self.eos_token_ids = eos_token_ids
        self.max_model_len = max_model_len
        self.backend = backend
        self.default_method = default_method
        self.grammars = grammars
        self.num_broken_laws = 0  # rows whose drafted tokens came with distributions that are none
        self._states: dict[Sequence, SamplingState] = {}

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._states.pop(sequence, None)

    def method(self, sequence: Sequence) -> VerificationMethod:
        """The method that all of the sequence's drafts are verified by."""
        seeded = sequence.request.seeded_by_user
        return method_for_life(self.default_method, seeded_by_user=seeded)

    def state(self, sequence: Sequence) -> SamplingState:
        """The state at the sequence's next token."""
        state = self._states.get(sequence)
        if state is None:
            request = sequence.request
            state = SamplingState(
                request.sampling,
                seed=request.seed,
                prompt_token_ids=request.prompt_token_ids,
                sample_index=sequence.sample_index,
                end_token_ids=() if request.sampling.ignore_eos else self.eos_token_ids,
                grammar=None if sequence.grammar is None else sequence.grammar.begin(),
            )
            self._states[sequence] = state
        return state

    def room(self, sequence: Sequence) -> int:
        """Tokens that the sequence may still get, at least 1 while it runs."""
        own = sequence.request.sampling.max_tokens - sequence.num_generated
        return min(own, self.max_model_len - len(sequence.token_ids))

    @torch.inference_mode()
    def sample(
        self, rows: list[Row], logits: torch.Tensor | None, draft_probs: DraftProbs | None = None
    ) -> list[SampledRow]:
        """One result a row.

        `logits` [sum of num_logits, V] float32, in the order of `rows`; `draft_probs` are those of
        the drafted tokens of rows under the ratio test, likewise.
        """
        results = [SampledRow() for _ in rows]
        if logits is None:
            return results
        ends = list(itertools.accumulate(row.num_logits for row in rows))
        sampling = [i for i, row in enumerate(rows) if row.samples]
        if sampling:
            # Prefilling rows may owe log probabilities of their prompts besides.
            wanted = [n for i in sampling for n in range(ends[i] - rows[i].verify_len - 1, ends[i])]
            drawn_from = logits if len(wanted) == len(logits) else logits[wanted]
            outcomes = self._outcomes([rows[i] for i in sampling], drawn_from, draft_probs)
            for place, i in enumerate(sampling):
                first = ends[i] - 1 - rows[i].verify_len
                results[i] = self._result(rows[i], outcomes, place, logits, first)
        self._report_prompts(rows, ends, logits, results)
        return results

    def _outcomes(
        self, rows: list[Row], logits: torch.Tensor, draft_probs: DraftProbs | None
    ) -> VerifiedRows:
        to_verify = [
            RowToVerify(
                method=self.method(row.sequence),
                state=self.state(row.sequence),
                drafted=row.drafted,
                round_id=row.sequence.num_rounds,
                branch=row.speculation.branch if row.speculation else 0,
            )
            for row in rows
        ]
        found = self.backend.verify(logits, to_verify, draft_probs)
        self.num_broken_laws += sum(found.has_broken_probs)
        return found

    def _result(
        self, row: Row, outcomes: VerifiedRows, place: int, logits: torch.Tensor, first: int
    ) -> SampledRow:
        """Cut an outcome where plain decoding would stop, and advance the sequence's state.

        The row's logits start at `first`, those after k drafted tokens being k further.
        """
        num_accepted = outcomes.num_accepted[place]
        commit = self._commit(row, num_accepted, outcomes.next_tokens[place])
        fault = _fault_of(logits[first + num_accepted]) if commit.failed else None
        if fault is Fault.NOT_FINITE and row.verify_len:
            # A drafted token may have done this, by way of masked keys: zero times NaN is NaN.
            return SampledRow(is_void=True)
        state = self.state(row.sequence)
        for token_id in commit.token_ids:
            state.append(token_id)
        return SampledRow(
            token_ids=commit.token_ids,
            num_accepted=commit.num_accepted,
            finish_reason=commit.finish_reason,
            stop_token_id=self._stop_token_id(row.sequence, commit),
            fault=fault,
            is_spoiled=outcomes.has_bad_logits[place],
            # Beyond the last token that is kept nobody asks.
            logprobs=outcomes.logprobs.get(place, [])[: len(commit.token_ids)],
        )

    def _commit(self, row: Row, num_accepted: int, next_token: int) -> Commit:
        sequence, sampling = row.sequence, row.sequence.request.sampling
        state = self.state(sequence)
        completing_at = None
        if state.grammar is not None:
            completing_at = completing(state.grammar, (*row.drafted[:num_accepted], next_token))
        return commit_of(
            row.drafted,
            num_accepted,
            next_token,
            end_token_ids=state.end_token_ids,
            num_held_back=max(0, sampling.min_tokens - sequence.num_generated),
            room=self.room(sequence),
            num_completing=completing_at,
        )

    def _stop_token_id(self, sequence: Sequence, commit: Commit) -> int | None:
        """What the sample ended with, unless its text is just complete."""
        if commit.finish_reason is not FinishReason.STOP:
            return None
        last = commit.token_ids[-1]
        grammar = self.state(sequence).grammar
        ends = self.state(sequence).end_token_ids
        return last if last in ends or (grammar and last in grammar.end_token_ids) else None

    def _report_prompts(
        self, rows: list[Row], ends: list[int], logits: torch.Tensor, results: list[SampledRow]
    ) -> None:
        wanted = [
            w
            for row, end, result in zip(rows, ends, results, strict=True)
            for w in _wanted_of_prompt(row, end, result)
        ]
        if not wanted:
            return
        records = token_logprobs(
            logits[[w.logits_row for w in wanted]],
            [w.token_id for w in wanted],
            [w.num_top for w in wanted],
        )
        for w, record in zip(wanted, records, strict=True):
            w.found.append(record)


def _fault_of(logits: torch.Tensor) -> Fault:
    """Whose fault it is that nothing could be drawn from a row's logits [V]."""
    return Fault.NO_TOKEN_LEFT if logits.amax().isfinite() else Fault.NOT_FINITE


def _wanted_of_prompt(row: Row, end: int, result: SampledRow) -> list[_Wanted]:
    """The prompt positions of `row`, whose last logits are at `end` - 1, that are still owed."""
    sequence = row.sequence
    if not sequence.owes_prompt_logprobs:
        return []
    top = sequence.request.sampling.prompt_logprobs or 0
    stop = sequence.num_computed + row.num_tokens
    return [
        _Wanted(end - stop + p, sequence.token_ids[p + 1], top, result.prompt_logprobs)
        for p in range(stop - row.num_logits, min(stop, sequence.num_prompt - 1))
    ]
