"""One draft batch: blocks drafted together after given anchors, as a push and for the cache.

All blocks of a draft batch are verified by one family of methods: shared noise (or none) for
coupled and greedy rows, noise used once for the rejection family. Knows nothing of outcomes.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node.draft_slot import DraftSlot
from draft_node.prespeculation.outcomes import OutcomeKind
from draft_node.prespeculation.speculation_cache import DraftedBlock, SpeculationCache
from draft_node.stream_sampling import PLAIN
from specserve.drafters.protocol import DraftBatch, Drafter, SpeculationBatch, StoppingThreshold
from specserve.drafters.slot_scores import BatchScores
from specserve.noise import OnceKeys
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import (
    Coupled,
    DraftSampler,
    Greedy,
    SaguaroFactors,
    Sampled,
)
from specserve.sampling.logits_processors import with_processors
from specserve.sampling.noise_table import NoiseTable
from specserve.sampling.state import SamplingState
from specserve.settings.config import NUM_KEPT
from specserve.transport.link.frames import MAX_BLOCKS
from specserve.transport.link.messages import BlockKey, Ids, Numbers, Push, RowReport
from specserve.types import DRAFT_BATCH_SIZE, DraftTime

_EPOCHS, _BRANCH_BITS = 256, 16  # of the 24 bits that a key has for the branch
MAX_BRANCHES = (1 << _BRANCH_BITS) - 1  # of a stream and round
# A token beyond the usual ones costs the target a fifth of a token to verify, and is one more
# outcome to foresee: it has to be likelier than that to stand, ...
_PRICE = 0.25
_TOKENS_PER_S = 10.0  # ... and bring so much a row for its time, as other outcomes would
_ROWS_OF_BATCH, _MOST_BATCHES = 4, 4
_MIN_SCORED = 1024  # tokens of a slot, of many, among which a sampled token is looked for


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What does not change while the process lives."""

    size: int = DRAFT_BATCH_SIZE  # branches of a draft batch at most, but see `most_blocks`
    fan_out: int = 32  # outcomes of a row and round
    num_kept: int = NUM_KEPT  # entries of a distribution
    # C of Saguaro sampling, for rows under plain rejection; None: draft as the drafter says.
    saguaro_c: float | None = None
    usual_tokens: int | None = None  # of a chain; None: gamma
    most_tokens: int | None = None  # of one that may have more; None: gamma
    # With confidences greedy and coupled chains may, where more are likely to stand. Without, all
    # may as far as there is time.
    goes_beyond: bool = False
    # What is known before any block was: P(its first token stands), and how long drafts take.
    acceptance: float = 0.7
    times: tuple[DraftTime, ...] = ()

    def most_blocks(self, num_rows: int) -> int:
        """Of a batch without distributions; more for many rows, as one large one costs less."""
        wanted = self.size * min(_MOST_BATCHES, max(1, num_rows // _ROWS_OF_BATCH))
        return min(wanted, MAX_BLOCKS)

    @property
    def num_scored(self) -> int:
        """Tokens of a slot that may become candidates."""
        return max(_MIN_SCORED, 2 * self.fan_out)


@dataclass(frozen=True, slots=True)
class Branch:
    """A block to draft: after the anchor of `key`, which follows `gap` behind the context."""

    stream: DraftSlot
    report: RowReport  # the pending round
    kind: OutcomeKind
    key: BlockKey
    gap: tuple[int, ...]  # pending tokens before the anchor: none for a root
    chance: float = 1.0  # that the target asks for it

    @property
    def state(self) -> SamplingState:
        """The sampling state at the block's first token."""
        stream, more = self.stream, (*self.gap, self.key.anchor_id)
        if stream.sampling is None:
            return PLAIN
        return stream.sampling.behind(stream.token_ids, self.report.position, more)

    @property
    def is_root(self) -> bool:
        return self.key.round == self.report.round


@dataclass(frozen=True, slots=True)
class DraftedBatch:
    """Blocks that were drafted together; those without a token are left out."""

    blocks: list[DraftedBlock]
    drawn: SpeculationBatch
    draft_probs: DraftProbs | None  # rejection family
    seconds: float  # that drafting took
    on_device: bool  # its distributions are sent from there

    def push(self) -> Push:
        """As it travels; of a draft batch with at least one block."""
        blocks, confidences = self.blocks, self.drawn.confidences
        is_cut = len(blocks) < len(self.drawn.token_ids)
        places = [block.place for block in blocks] if is_cut else slice(None)
        kept_ids, kept_probs = self._kept(places)
        return Push(
            keys=[block.key for block in blocks],
            speculation_ids=[block.speculation_id for block in blocks],
            lengths=[len(block.token_ids) for block in blocks],
            token_ids=_on_host(self.drawn.token_ids, np.int32)[places],
            confidences=np.empty((len(blocks), 0), np.float32)
            if confidences is None
            else _on_host(confidences, np.float32)[places],
            kept_ids=kept_ids,
            kept_probs=kept_probs,
            draft_batch_s=self.seconds,
        )

    def _kept(self, places: list[int] | slice) -> tuple[Ids, Numbers]:
        """The distributions of blocks at these places."""
        num_drawn, width = self.drawn.token_ids.shape
        if self.draft_probs is None:
            shape = (len(self.blocks), width, 0)
            return np.empty(shape, np.int32), np.empty(shape, np.float32)
        shape = (num_drawn, width, -1)
        ids, probs = self.draft_probs.ids.view(shape), self.draft_probs.probs.view(shape)
        if self.on_device:
            return ids[places].to(torch.int32), probs[places]
        return _on_host(ids, np.int32)[places], _on_host(probs, np.float32)[places]


def _on_host(tensor: Tensor, dtype: type[np.generic]) -> NDArray[Any]:
    return tensor.cpu().numpy().astype(dtype, copy=False)


class BatchDrafter:
    """Drafts batches of blocks and keeps what they were drawn from."""

    def __init__(
        self,
        drafter: Drafter,
        cache: SpeculationCache,
        settings: BatchSettings,
        device: torch.device,
    ) -> None:
        self.epoch = 0  # of the attachment; part of every key of the rejection family
        self.on_device = False  # whether distributions are sent from there
        self.noise = NoiseTable()  # of the output, as drawn with
        self._drafter = drafter
        self._cache = cache
        self._settings = settings
        self._device = device

    @property
    def usual_tokens(self) -> int:
        """Of a block."""
        usual, gamma = self._settings.usual_tokens, self._drafter.gamma
        return gamma if usual is None else min(usual, gamma)

    @property
    def tokens_in_time(self) -> int:
        """Of a block that nothing but its time ends; the usual number where confidences do."""
        most, gamma = self._settings.most_tokens, self._drafter.gamma
        if self._settings.goes_beyond:
            return self.usual_tokens
        return gamma if most is None else min(most, gamma)

    def draft(
        self, branches: Sequence[Branch], min_gap: int, due_s: float = math.inf
    ) -> "DraftedBatch":
        """Draft and remember. Branches are of one family; `due_s` is as in `DraftBatch`.

        Gaps of the rejection family are laid out `min_gap` long, so that the work of a draft batch
        does not depend on which of the pending tokens its outcomes accept.
        """
        began_s = time.perf_counter()
        by_ratio = branches[0].kind.needs_probs
        degrees = [max(0.0, branch.report.temperature) for branch in branches]
        temperatures = torch.tensor(degrees, dtype=torch.float32, device=self._device)
        sampler = (self._sampled if by_ratio else self._coupled)(branches, temperatures)
        states = [branch.state for branch in branches]
        if by_ratio:
            # A mask takes longer behind some tokens than behind others, and whether a block of
            # this family is late may not depend on its tokens.
            states = [state.without_grammar() for state in states]
        sampler = with_processors(sampler, states)
        is_foreseen = any(branch.kind.shares_noise for branch in branches)
        # With Saguaro sampling, too: what is drawn from no longer tells which tokens are likeliest.
        keep_logits = not by_ratio or is_foreseen or self._settings.saguaro_c is not None
        batch = self._batch(branches, min_gap=min_gap if by_ratio else 0, keep_logits=keep_logits)
        is_awaited = any(branch.is_root for branch in branches)
        is_usual = is_awaited or math.isinf(due_s)
        most = self.usual_tokens if is_usual else self.tokens_in_time
        batch = replace(batch, due_s=due_s, most=most)
        # Others may not look at what was drafted.
        if self._settings.goes_beyond and not by_ratio and not is_awaited:
            batch = replace(
                batch,
                most=self._settings.most_tokens,
                least=self.usual_tokens,
                threshold=StoppingThreshold(_TOKENS_PER_S * len(set(batch.rows)), _PRICE),
                chances=[branch.chance for branch in branches],
            )
        drawn = self._drafter.draft(batch, sampler)
        if drawn.confidences is not None:
            # A NaN survives `clamp`, and the target refuses all blocks of a push for one of them.
            confidences = drawn.confidences.nan_to_num(0.0).clamp(0.0, 1.0)
            drawn = replace(drawn, confidences=confidences)
        scales = torch.where(temperatures > 0, 1 / temperatures, 1.0)
        scores = BatchScores.of(drawn, scales, self._settings.num_scored)
        blocks = self._blocks(branches, drawn, scores)
        self._cache.add(blocks)
        draft_probs = drawn.draft_probs if by_ratio else None
        seconds = time.perf_counter() - began_s
        return DraftedBatch(blocks, drawn, draft_probs, seconds, on_device=self.on_device)

    def _batch(self, branches: Sequence[Branch], *, min_gap: int, keep_logits: bool) -> DraftBatch:
        has_gaps = not self._drafter.holds_pending_tokens
        gaps = [branch.gap for branch in branches]
        lengths = [branch.report.position for branch in branches]
        if not has_gaps:  # the pending tokens are in the context
            lengths = [length + len(gap) for length, gap in zip(lengths, gaps, strict=True)]
        anchors = [branch.key.anchor_id for branch in branches]
        return DraftBatch(
            rows=[branch.stream.number for branch in branches],
            anchor_ids=torch.tensor(anchors, dtype=torch.int64, device=self._device),
            gap_ids=gaps if has_gaps else None,
            context_lens=lengths,
            min_gap=min_gap,
            keep_logits=keep_logits,
        )

    def _sampled(self, branches: Sequence[Branch], temperatures: Tensor) -> DraftSampler:
        keys = OnceKeys.build(
            nonces=[branch.report.seed for branch in branches],
            sample_indices=[branch.report.sample_index for branch in branches],
            rounds=[branch.key.round for branch in branches],
            branches=[self._branch_number(branch) for branch in branches],
            positions=[0] * len(branches),  # the sampler fills them in
            device=self._device,
        )
        saguaro = self._saguaro(branches)
        return Sampled(temperatures, keys, self._settings.num_kept, saguaro)

    def _saguaro(self, branches: Sequence[Branch]) -> SaguaroFactors | None:
        """Of rows whose recovery token nobody foresees; others would only be accepted less."""
        factor = self._settings.saguaro_c
        if factor is None:
            return None
        is_plain = [branch.kind is OutcomeKind.REJECTION for branch in branches]
        factors = torch.tensor([factor if plain else 1.0 for plain in is_plain])
        each = math.ceil(self._settings.fan_out / (self.usual_tokens + 1))  # outcomes of a slot
        return SaguaroFactors(factors.to(self._device), each)

    def _coupled(self, branches: Sequence[Branch], temperatures: Tensor) -> DraftSampler:
        if all(branch.kind is OutcomeKind.GREEDY for branch in branches):
            return Greedy()
        words = [
            [branch.report.seed for branch in branches],
            [branch.report.sample_index for branch in branches],
        ]
        seeds, samples = torch.tensor(words, dtype=torch.int64, device=self._device)
        return Coupled(temperatures, seeds=seeds, sample_indices=samples, source=self.noise)

    def _branch_number(self, branch: Branch) -> int:
        number = branch.stream.next_branch(branch.key.round)
        if number > MAX_BRANCHES:
            raise ValueError("a round has more branches than there are keys for")
        return (self.epoch % _EPOCHS) << _BRANCH_BITS | number

    def _blocks(
        self, branches: Sequence[Branch], drawn: SpeculationBatch, scores: BatchScores | None
    ) -> list[DraftedBlock]:
        """Those with at least one token."""
        token_ids = drawn.token_ids.tolist()
        confidences = None if drawn.confidences is None else drawn.confidences.tolist()
        lengths = drawn.lengths or [drawn.token_ids.shape[1]] * len(branches)
        return [
            DraftedBlock(
                speculation_id=self._cache.next_id(),
                key=branch.key,
                token_ids=tuple(token_ids[place][:length]),
                confidences=None if confidences is None else tuple(confidences[place][:length]),
                scores=scores,
                place=place,
            )
            for place, (branch, length) in enumerate(zip(branches, lengths, strict=True))
            if length
        ]
