"""Synchronous speculation: a drafter in this process drafts for the decoding rows of each round.

    contexts catch up with what was verified -> one block a row -> `Speculation` and its
    distributions

A drafter's context is derived state: whatever is missing of it (a prompt served by the prefix
cache, a preempted row, a new sample) is read from token ids and the feature cache, so nothing here
needs to be told what happened to a sequence, only that it ended. Where memory is short, contexts
of sequences that are not drafted for now (preempted ones above all) make room.
"""

import logging
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from specserve.backends.base import Backend
from specserve.drafters.context import ContextCapacity
from specserve.drafters.protocol import (
    ContextUpdate,
    DraftBatch,
    Drafter,
    SpeculationBatch,
    StoppingThreshold,
)
from specserve.drafters.slot_scores import BatchScores, SlotScores
from specserve.errors import Exhausted
from specserve.noise import OnceKeys
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import (
    Coupled,
    DraftSampler,
    Greedy,
    NoiseSource,
    Sampled,
    fresh_log_noise,
)
from specserve.sampling.logits_processors import with_processors
from specserve.sampling.noise_table import NoiseTable
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.method import VerificationMethod, verified_by
from specserve.types import Speculation
from target_node.planning.acceptance import FIRST
from target_node.planning.draft_pace import MOST_ENTER, DraftPace
from target_node.sequence import Sequence
from target_node.speculation.feature_cache import FeatureCache

MAX_FAILURES = 5  # in a row; then the drafter is asked no more

log = logging.getLogger(__name__)

Speculations = Mapping[Sequence, Speculation]


class CircuitBreaker:
    """A drafter in this process that fails costs its drafts, never a request; at last, itself."""

    def __init__(self) -> None:
        self._num_failures = 0  # in a row
        self._total = 0

    @property
    def is_failing(self) -> bool:
        """Whether what was asked last has raised, or nothing is asked any more."""
        return self._num_failures > 0

    def ask(self, draft: Callable[[], Speculations]) -> Speculations:
        """What `draft` returns; nothing where it raises, or did too often in a row."""
        if self._num_failures >= MAX_FAILURES:
            return {}
        try:
            drafted = draft()
        except Exception:
            self._num_failures += 1
            self._total += 1
            # Of failures that go on and on, the 1st, 2nd, 4th, 8th and so on are told.
            if self._total <= MAX_FAILURES or self._total & (self._total - 1) == 0:
                log.exception("drafting failed (%d of %d times)", self._num_failures, MAX_FAILURES)
            return {}
        self._num_failures = 0
        return drafted


@dataclass(frozen=True)
class RowToDraft:
    """A decoding row: `state` is that of the token after its anchor."""

    sequence: Sequence
    state: SamplingState
    method: VerificationMethod


@dataclass(frozen=True)
class _Update:
    """Positions start..end - 1 of a sequence, to be added to the context of row `place`."""

    sequence: Sequence
    place: int
    start: int
    end: int


class ColocatedDraft:
    """One drafter and the contexts of the live sequences."""

    def __init__(
        self,
        drafter: Drafter,
        features: FeatureCache | None,
        *,
        vocab_size: int,
        num_kept: int,
        gamma: int | None = None,
        max_extension: int = 512,
        backend: Backend,
    ) -> None:
        """Draws from the `num_kept` likeliest tokens; `gamma` cuts the drafter's own.

        Contexts grow by at most `max_extension` tokens a round.
        """
        self.gamma = min(drafter.gamma, gamma or drafter.gamma)
        self.name = drafter.name
        self.capacity: ContextCapacity | None = None  # of its contexts; known to whoever sized them
        self.pace = DraftPace()  # of its drafts
        # False leaves tokens in blocks that requests' grammars forbid: they cost acceptance, and
        # show what the mask of drafts is worth.
        self.keeps_to_grammars = True
        # Chains that nothing but their number of tokens ends: nobody knows which of them stand.
        self.is_blind = drafter.stops_in_time and getattr(drafter, "probs_confidence", None) is None
        self._drafter = drafter
        self._features = features
        self._vocab_size = vocab_size
        self._num_kept = num_kept
        self._max_extension = max_extension
        self._backend, self._device = backend, backend.device
        # What was rejected is drafted again behind other tokens, by the same noise.
        # Where the device runs behind, to look what is known already would be a wait for it.
        self._noise: NoiseSource = fresh_log_noise if backend.is_asynchronous else NoiseTable()
        self._row_of: dict[Sequence, int] = {}
        self._num_ended = 0
        self._starved: set[Sequence] = set()  # no memory for their contexts
        self.catching_up: set[Sequence] = set()  # of the latest rows; they may have a block later
        self._drawn: SpeculationBatch | None = None  # the distributions of this round
        self._threshold: StoppingThreshold | None = None  # of this round
        self._most: int | None = None
        self._foreseen: dict[Sequence, tuple[BatchScores, int]] = {}  # of this round, by place

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        row = self._row_of.pop(sequence, None)
        if row is not None:
            self._num_ended += 1
            self._drafter.free(row)
            self._starved.clear()

    def speculate(
        self,
        rows: Rows[RowToDraft],
        *,
        num_scored: int = 0,
        threshold: StoppingThreshold | None = None,
        most: int | None = None,
    ) -> dict[Sequence, Speculation]:
        """A speculation for each row that can have one; forgets the last round's distributions.

        With `num_scored` that many likely tokens of every slot are there for `scores`. Chains end
        where `threshold` says, blind ones after `most` tokens.
        """
        began_s, num_first_calls = time.perf_counter(), self._backend.num_first_calls
        self._drawn = None
        self._foreseen.clear()
        self._threshold = threshold
        self._most = (most or FIRST) if self.is_blind else None
        ready, num_entered = self._catch_up(rows)
        ready_s = time.perf_counter()
        found = self._draft(ready, num_scored)
        if ready and self._backend.num_first_calls == num_first_calls:  # which take longer
            longest = max((len(each.token_ids) for each in found.values()), default=0)
            ended_s = time.perf_counter()
            if not self._backend.is_asynchronous:
                self.pace.observe(len(ready), longest, ended_s - ready_s)
                self.pace.observe_entering(len(ready), num_entered, ready_s - began_s)
            elif num_entered <= MOST_ENTER * len(ready):
                # What enters is computed behind the host, while this waits for the draft.
                self.pace.observe(len(ready), longest, ended_s - began_s)
        return found

    def _draft(self, ready: Rows[RowToDraft], num_scored: int) -> dict[Sequence, Speculation]:
        """For rows whose contexts are complete."""
        found: dict[Sequence, Speculation] = {}
        for by_ratio in (False, True):
            group = [row for row in ready if needs_probs(row) is by_ratio]
            if group:
                keep_logits = num_scored > 0 and not by_ratio
                sampler = self._sampler(group, by_ratio=by_ratio)
                # Of a block whose outcome is to be foreseen the last token stays behind.
                batch = self._batch(group, keep_logits=keep_logits, least=2 if num_scored else 1)
                drawn = self._drafter.draft(batch, sampler)
                if num_scored:
                    self._foresee(group, drawn, num_scored)
                found.update(self._speculations(group, drawn))
                if by_ratio:
                    self._drawn = drawn
        return found

    def draft_probs(self, places: Rows[tuple[int, int]]) -> DraftProbs | None:
        """Distributions of blocks' first tokens, one by one, given as (place, verify_len)."""
        if self._drawn is None or self._drawn.draft_probs is None:
            return None
        draft_probs, size = self._drawn.draft_probs, self._drawn.token_ids.shape[1]
        if len(places) == 1:  # side by side: nothing has to be copied
            ((place, length),) = places
            of_block = slice(place * size, place * size + length)
            return DraftProbs(draft_probs.ids[of_block], draft_probs.probs[of_block])
        rows = [place * size + k for place, length in places for k in range(length)]
        return draft_probs.rows(torch.tensor(rows, dtype=torch.int64, device=self._device))

    def scores(self, sequence: Sequence, num_slots: int) -> SlotScores | None:
        """What may stand behind the first 0 .. num_slots - 1 tokens of this round's block."""
        if sequence not in self._foreseen:
            return None
        scores, place = self._foreseen[sequence]
        return scores.slots(place, min(num_slots, scores.width))

    def _foresee(self, rows: Rows[RowToDraft], drawn: SpeculationBatch, num_scored: int) -> None:
        temperatures = torch.tensor(_temperatures(rows), dtype=torch.float32, device=self._device)
        scales = torch.where(temperatures > 0, 1 / temperatures, 1.0)
        scores = BatchScores.of(drawn, scales, num_scored)
        if scores is not None:
            self._foreseen = self._foreseen | {
                row.sequence: (scores, place) for place, row in enumerate(rows)
            }

    # --- contexts ----------------------------------------------------------------------------

    def _catch_up(self, rows: Rows[RowToDraft]) -> tuple[list[RowToDraft], int]:
        """Extend contexts towards their anchors; rows whose contexts are complete, tokens added.

        At most `max_extension` tokens a round: a long prompt must not stall the others here either.
        """
        room, present = self._max_extension, {row.sequence for row in rows}
        if self._starved:
            self._free_absent(present)
        updates: list[_Update] = []
        for sequence in (row.sequence for row in rows):
            place = self._row_of.setdefault(sequence, len(self._row_of) + self._num_ended)
            known = self._drafter.context_len(place)
            count = min(sequence.num_computed - known, room)
            if count > 0 and sequence not in self._starved:
                updates.append(_Update(sequence, place, known, known + count))
                room -= count
        if updates:
            self._extend(updates, present)
        ready = [row for row in rows if self._is_current(row.sequence)]
        self.catching_up = present - {row.sequence for row in ready} - self._starved
        return ready, sum(update.end - update.start for update in updates)

    def _extend(self, updates: Rows["_Update"], present: set[Sequence]) -> None:
        """If they do not fit together, those that fit alone; the others wait for memory."""
        try:
            self._drafter.extend(self._as_context(updates))
        except Exhausted as error:
            if self._free_absent(present):
                self._extend(updates, present)
            elif len(updates) > 1:
                for update in updates:
                    self._extend([update], present)
            else:
                self._starve(updates[0], error)

    def _starve(self, update: _Update, error: Exhausted) -> None:
        """A context that cannot grow drafts nothing: what it holds may be what others lack."""
        if not self._starved:
            lengths = [sequence.num_computed for sequence in self._row_of]
            why = error if self.capacity is None else self.capacity.shortage(lengths)
            log.warning("a row is decoded without drafts: %s", why)
        self._starved.add(update.sequence)
        self._drafter.free(update.place)

    def _free_absent(self, present: set[Sequence]) -> bool:
        """Free contexts of sequences that are not `present`; whether there was one.

        They will be read again, and starved rows may try again.
        """
        absent = [
            place
            for sequence, place in self._row_of.items()
            if sequence not in present and self._drafter.context_len(place)
        ]
        for place in absent:
            self._drafter.free(place)
        if absent:
            self._starved.clear()
        return bool(absent)

    def _is_current(self, sequence: Sequence) -> bool:
        return self._drafter.context_len(self._row_of[sequence]) == sequence.num_computed

    def _as_context(self, updates: Rows["_Update"]) -> ContextUpdate:
        token_ids: list[int] = []
        for update in updates:
            token_ids += update.sequence.token_ids[update.start : update.end]
        spans = [(update.sequence.block_ids, update.start, update.end) for update in updates]
        return ContextUpdate(
            rows=[update.place for update in updates],
            starts=[update.start for update in updates],
            counts=[update.end - update.start for update in updates],
            token_ids=torch.tensor(token_ids, dtype=torch.int64, device=self._device),
            features=None if self._features is None else self._features.read(spans),
        )

    # --- blocks ------------------------------------------------------------------------------

    def _batch(self, rows: Rows[RowToDraft], *, keep_logits: bool, least: int) -> DraftBatch:
        anchors = [row.sequence.token_ids[-1] for row in rows]
        return DraftBatch(
            rows=[self._row_of[row.sequence] for row in rows],
            anchor_ids=torch.tensor(anchors, dtype=torch.int64, device=self._device),
            keep_logits=keep_logits,
            threshold=self._threshold,
            least=least,
            most=self._most,
        )

    def _sampler(self, rows: Rows[RowToDraft], *, by_ratio: bool) -> DraftSampler:
        states = [row.state for row in rows]
        if not self.keeps_to_grammars:
            states = [state.without_grammar() for state in states]
        temperatures = torch.tensor(_temperatures(rows), dtype=torch.float32, device=self._device)
        sample_indices = [state.sample_index for state in states]
        if by_ratio:
            keys = OnceKeys.build(
                nonces=[state.seed_bits for state in states],
                sample_indices=sample_indices,
                rounds=[row.sequence.num_rounds for row in rows],
                branches=[0] * len(rows),
                positions=[state.position for state in states],
                device=self._device,
            )
            return with_processors(Sampled(temperatures, keys, self._num_kept), states)
        if all(state.is_greedy for state in states):
            return with_processors(Greedy(), states)
        seeds = [state.seed_bits for state in states]
        words = torch.tensor([seeds, sample_indices], dtype=torch.int64, device=self._device)
        sampler = Coupled(temperatures, words[0], words[1], self._noise)
        return with_processors(sampler, states)

    def _speculations(
        self, rows: Rows[RowToDraft], drawn: SpeculationBatch
    ) -> dict[Sequence, Speculation]:
        blocks = drawn.token_ids[:, : self.gamma].tolist()
        confidences = None if drawn.confidences is None else drawn.confidences.tolist()
        found: dict[Sequence, Speculation] = {}
        for place, (row, token_ids) in enumerate(zip(rows, blocks, strict=True)):
            if drawn.lengths is not None:
                token_ids = token_ids[: drawn.lengths[place]]
            if any(not 0 <= token_id < self._vocab_size for token_id in token_ids):
                raise ValueError(f"the drafter drew a token outside 0..{self._vocab_size - 1}")
            if token_ids:
                found[row.sequence] = Speculation(
                    token_ids=tuple(token_ids),
                    confidences=None if confidences is None else tuple(confidences[place]),
                    place=place,
                )
        return found


def _temperatures(rows: Rows[RowToDraft]) -> list[float]:
    return [0.0 if row.state.is_greedy else row.state.temperature for row in rows]


def needs_probs(row: RowToDraft) -> bool:
    """Whether the row's drafts are verified by the ratio test."""
    method = verified_by(row.method, is_greedy=row.state.is_greedy)
    return method is not VerificationMethod.COUPLED
