"""Logits processors of drafts: what the target will refuse need not be drafted.

Penalties, bias, held-back ends and truncation change the target's distribution; a draft that knows
nothing of them is as exact and guesses worse. Here draft logits are edited and cut before a token
is drawn, so the distribution that is drawn from, and shipped, is that of the edited logits. What is
cut is nearly what the target would cut of the same logits: nothing but acceptance depends on it, so
it may be cheap. Confidences are not touched: they are known before, and are those of the drafter's
own distribution. What may follow instead is told by logits so edited and cut, as the target's next
token is drawn from such.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specserve.sampling.batch import LogitEdits, SamplingBatch, apply_edits
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import (
    BlockLayout,
    DraftSampler,
    DraftSampling,
    TensorSampling,
    likeliest,
)
from specserve.sampling.state import SamplingState

_CUT = "cut "  # before names of tensors
_NUM_CANDIDATES = 512  # tokens among which a nucleus is looked for; a larger one is not cut


def with_processors(sampler: DraftSampler, states: Sequence[SamplingState]) -> DraftSampler:
    """`sampler` behind the requests' logits processors; `states` [B]: of each block's first token.

    `sampler` itself where no request has any that edits or cuts.
    """
    return ProcessedSampler(sampler, states) if any(map(has_processors, states)) else sampler


def has_processors(state: SamplingState) -> bool:
    """Whether the request's parameters make another distribution of what a drafter says."""
    return state.edits_logits or (state.is_truncated and not state.is_greedy)


@dataclass(frozen=True)
class ProcessedSampler:
    """A `DraftSampler` in front of another one."""

    inner: DraftSampler
    states: Sequence[SamplingState]  # [B], left as they are

    def begin(self, layout: BlockLayout) -> DraftSampling:
        inner = self.inner.begin(layout)
        cut = _Cut.of_blocks(self.states, layout.positions.device)
        if cut is not None and isinstance(inner, TensorSampling):
            return _CutDraws(inner, cut)
        return ProcessedSampler._Draws(inner, layout, [state.fork() for state in self.states])

    @dataclass
    class _Draws:
        inner: DraftSampling
        layout: BlockLayout
        states: list[SamplingState]  # of the next slot's tokens
        processing: "_Processing | None" = None  # of `states`, each once for every slot of a draw

        def draw(self, first_slot: int, logits: Tensor) -> Tensor:
            if logits.shape[1] > 1 and any(state.grammar is not None for state in self.states):
                slots = range(logits.shape[1])  # what may stand in one depends on those before
                drawn = [self.draw(first_slot + k, logits[:, k : k + 1]) for k in slots]
                return torch.cat(drawn, dim=1)
            if self.processing is None:
                states = [state for state in self.states for _ in range(logits.shape[1])]
                batch = SamplingBatch.build(states, logits.device)
                self.processing = _Processing(batch.edits, _Cut.of(batch), self.layout)
            rows = self.processing.applied_to(logits.flatten(0, 1))
            token_ids = self.inner.draw(first_slot, logits.copy_(rows.view(logits.shape)))
            self._advance(token_ids)
            return token_ids

        def draft_probs(self) -> DraftProbs | None:
            return self.inner.draft_probs()

        def _advance(self, token_ids: Tensor) -> None:
            """Penalties, `min_tokens` and grammars know the drafted tokens before."""
            if not any(_remembers(state) for state in self.states):
                return
            for state, drawn in zip(self.states, token_ids.tolist(), strict=True):
                for token_id in drawn:
                    state.append(token_id)
            self.processing = None


def _remembers(state: SamplingState) -> bool:
    """Whether what is drafted now changes how the next slot's logits are processed."""
    has_history = state.penalties is not None or state.grammar is not None
    return has_history or bool(state.forbidden_ids)


@dataclass(frozen=True)
class _CutDraws:
    """Of B blocks that edit nothing: what is cut of a slot, no slot before it can tell."""

    inner: TensorSampling
    cut: "_Cut"  # of the blocks

    def draw(self, first_slot: int, logits: Tensor) -> Tensor:
        rows = self.cut.repeated(logits.shape[1]).applied_to(logits.flatten(0, 1))
        return self.inner.draw(first_slot, logits.copy_(rows.view(logits.shape)))

    def draft_probs(self) -> DraftProbs | None:
        return self.inner.draft_probs()

    @property
    def kind(self) -> tuple[object, ...]:
        return (type(self), self.cut.max_top_k, *self.inner.kind)

    def tensors(self) -> dict[str, Tensor]:
        return self.inner.tensors() | {_CUT + name: x for name, x in self.cut.tensors().items()}

    def over(self, tensors: dict[str, Tensor]) -> "_CutDraws":
        own = {name: tensors[_CUT + name] for name in self.cut.tensors()}
        others = {name: x for name, x in tensors.items() if not name.startswith(_CUT)}
        return _CutDraws(self.inner.over(others), replace(self.cut, **own))


def _cuts_of(state: SamplingState) -> tuple[float, int, float, float]:
    """Temperature, top_k, top_p and min_p."""
    own = state.params
    if state.is_greedy:
        return 1.0, 0, 1.0, 0.0
    return state.temperature, own.top_k, own.top_p, own.min_p


def _most(top_k: Sequence[int]) -> int | None:
    """The largest, rounded up to a power of two; None where one is off or too large to help.

    Few sizes are few shapes for whoever captures what is done.
    """
    if not all(top_k) or max(top_k) > _NUM_CANDIDATES:
        return None
    return 1 << (max(top_k) - 1).bit_length()


@dataclass(frozen=True)
class _Processing:
    """What is done to N rows of draft logits."""

    edits: LogitEdits | None
    cut: "_Cut | None"
    layout: BlockLayout

    def applied_to(self, rows: Tensor) -> Tensor:
        """[N, DV] -> [N, DV]"""
        if self.edits is not None:
            rows = self._edited(rows, self.edits)
        return rows if self.cut is None else self.cut.applied_to(rows)

    def _edited(self, rows: Tensor, edits: LogitEdits) -> Tensor:
        target_ids = self.layout.target_ids
        if target_ids is None:
            edited = apply_edits(rows, edits)
        else:
            whole = rows.new_zeros(len(rows), self.layout.vocab_size)  # edits name the target's ids
            whole[:, target_ids] = rows
            edited = apply_edits(whole, edits)[:, target_ids]
        if not edits.allowed_rows.numel():
            return edited
        # A drafter of fewer tokens may know none that a grammar allows: it drafts in vain, then.
        is_possible = edited.amax(dim=1, keepdim=True) > -torch.inf
        return torch.where(is_possible, edited, rows)


@dataclass(frozen=True)
class _Cut:
    """top_k, top_p and min_p of R of the rows, as `specserve.sampling.truncation` defines them."""

    places: Tensor | None  # int64 [R]; None: all rows, in order
    temperatures: Tensor  # float32 [R, 1], as all that follow
    least: Tensor  # log of min_p
    top_k: Tensor | None  # int64, 0 is off; None: nobody's
    top_p: Tensor | None
    max_top_k: int | None  # of rows that all have a top_k; None: some that are cut have none

    @staticmethod
    def of_blocks(states: Sequence[SamplingState], device: torch.device) -> "_Cut | None":
        """All of them, "off" where nothing is cut; None where one edits logits besides."""
        if any(state.edits_logits for state in states):
            return None
        params = [state.params for state in states if state.is_truncated and not state.is_greedy]
        cuts = [_cuts_of(state) for state in states]
        table = torch.tensor(cuts, dtype=torch.float64).to(device)
        temperatures, top_k, top_p, min_p = table.unsqueeze(2).unbind(1)
        return _Cut(
            places=None,
            temperatures=temperatures.float(),
            least=min_p.log().float(),
            top_k=top_k.long() if any(own.top_k for own in params) else None,
            top_p=top_p.float() if any(own.top_p < 1 for own in params) else None,
            max_top_k=_most([own.top_k for own in params]),
        )

    def tensors(self) -> dict[str, Tensor]:
        """All there are, but for places."""
        named = {
            "temperatures": self.temperatures,
            "least": self.least,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }
        return {name: x for name, x in named.items() if x is not None}

    def repeated(self, count: int) -> "_Cut":
        """Each of the rows so often, one after the other."""
        if count == 1:
            return self
        each = {name: x.repeat_interleave(count, dim=0) for name, x in self.tensors().items()}
        return replace(self, **each)

    @staticmethod
    def of(batch: SamplingBatch) -> "_Cut | None":
        truncation = batch.truncation
        if truncation is None:
            return None
        places = truncation.places
        temperatures = batch.temperatures[places]
        if batch.greedy_rows is not None and batch.random_rows is not None:
            places = batch.random_rows[places]
        return _Cut(
            places=None if len(places) == batch.num_rows else places,
            temperatures=temperatures.float().unsqueeze(1),
            least=truncation.min_p.log().float().unsqueeze(1),
            top_k=truncation.top_k.unsqueeze(1) if truncation.max_top_k else None,
            top_p=truncation.top_p.float().unsqueeze(1) if truncation.any_top_p else None,
            max_top_k=_most([truncation.max_top_k] if truncation.all_top_k else [0]),
        )

    def applied_to(self, rows: Tensor) -> Tensor:
        """[N, DV] with what is cut at minus infinity."""
        part = rows if self.places is None else rows[self.places]
        scaled = (part - part.amax(dim=1, keepdim=True)).div_(self.temperatures)
        part = part.masked_fill(scaled < self._thresholds(scaled), -torch.inf)
        return part if self.places is None else rows.index_copy(0, self.places, part)

    def _thresholds(self, scaled: Tensor) -> Tensor:
        """The least scaled logit that stays, [R, 1]; the largest of each row of `scaled` is 0."""
        if self.top_k is None and self.top_p is None:
            return self.least
        num_candidates = min(self.max_top_k or _NUM_CANDIDATES, scaled.shape[1])
        ordered = likeliest(scaled, num_candidates)[0].sort(dim=1, descending=True).values
        least, last, is_short = self.least, None, None
        if self.top_k is not None:
            last = (self.top_k - 1).clamp(0, num_candidates - 1)
            is_short = (self.top_k > 0) & (self.top_k <= num_candidates)
            least = torch.where(is_short, least.maximum(ordered.gather(1, last)), least)
        if self.top_p is None:
            return least
        held = ordered.exp().cumsum(dim=1)
        if last is None or is_short is None:
            total = scaled.exp().sum(dim=1, keepdim=True)
        else:
            total = held.gather(1, last)
            if self.max_top_k is None:
                total = torch.where(is_short, total, scaled.exp().sum(dim=1, keepdim=True))
        place = (held < total * self.top_p).sum(dim=1, keepdim=True)
        is_found = (place < num_candidates) & (self.top_p < 1)
        nucleus = ordered.gather(1, place.clamp_(max=num_candidates - 1))
        return torch.where(is_found, least.maximum(nucleus), least)
