"""What a draft round needs of a drafter, whatever its architecture.

A drafter keeps a *context* per row: what it knows of the row's verified tokens. `extend` appends
verified tokens with the target's projected features, `draft` proposes gamma tokens after an anchor,
`truncate` and `free` undo. Several blocks of one `draft` may share a row: the branches of one
request differ in their anchors, not in their context.

How tokens are drawn is not the drafter's business: see `specserve.sampling.draft_sampler`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import DraftSampler


@dataclass(frozen=True)
class ContextUpdate:
    """Verified tokens of R rows, flattened: N = sum(counts).

    Row r gets tokens at positions starts[r] .. starts[r] + counts[r] - 1, and starts[r] is where
    its context ends; a row unknown so far starts at 0.
    """

    rows: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    token_ids: Tensor  # [N] int64
    # [N, feature_size], as projected by `FeatureSpec`; None where unused, and of pending tokens.
    features: Tensor | None


@dataclass(frozen=True)
class StoppingThreshold:
    """What another pass of a chain has to bring: its time and its places, in tokens."""

    tokens_per_s: float  # made while a draft takes its time
    token_price: float  # what verifying one more token costs
    # Whether a chain may end by what was drafted. Where blocks compete for places it may not: a
    # token that ended its neighbours' chains would make room for itself.
    may_look: bool = True


@dataclass(frozen=True)
class DraftBatch:
    """B blocks to draft; the anchor of each directly follows its context and `gap_ids`."""

    rows: Sequence[int]  # B context rows, not necessarily distinct
    anchor_ids: Tensor  # [B] int64
    # Pending tokens between context and anchor, whose features have not arrived; None: nowhere.
    gap_ids: Sequence[Sequence[int]] | None = None
    # How much of its row's context a block follows, at least 1; None: all of it.
    context_lens: Sequence[int] | None = None
    # Gaps are laid out as if one were this long, where work must not depend on what was drawn.
    min_gap: int = 0
    keep_logits: bool = False  # return `SpeculationBatch.logits` too
    # When the blocks are wanted, in seconds of `time.perf_counter`: what is drafted token by token
    # may end early, after two tokens at least.
    due_s: float = math.inf
    # What is drafted token by token ends where another token is likely to cost more than it brings,
    # after `least` tokens at least; None: nowhere.
    threshold: StoppingThreshold | None = None
    least: int = 1
    chances: Sequence[float] | None = None  # [B] that a block is asked for; None: all are
    most: int | None = None  # tokens of what is drafted token by token; None: gamma

    def max_gap(self) -> int:
        return max(self.min_gap, *map(len, self.gap_ids)) if self.gap_ids else 0


@dataclass(frozen=True)
class SpeculationBatch:
    """B speculations of G tokens, gamma or fewer, on the drafter's device."""

    token_ids: Tensor  # [B, G] int64, ids of the target's vocabulary
    # [B * G] distributions, block by block, from which the tokens were drawn; None where no method
    # needs them.
    draft_probs: DraftProbs | None
    # [B, G] float32: P(token k accepted | those before it were), known before token k is drawn.
    confidences: Tensor | None
    lengths: Sequence[int] | None = None  # tokens that count in each block; None: all G
    # [B, G, DV] float32: the logits each token was drawn from, if asked for and if there are any.
    logits: Tensor | None = None
    target_ids: Tensor | None = None  # [DV] target id of each column of `logits`; None: the same
    token_s: float = 0.0  # that one token more of all blocks takes; 0: nobody knows


class ProbsConfidence(Protocol):
    """Confidences for drafters without a head: functions of probabilities, never of a draw."""

    def __call__(self, first_slot: int, logits: Tensor) -> Tensor:
        """Draft logits [B, S, V] of slots first_slot .. first_slot + S - 1: [B, S] in 0..1."""
        ...


class Drafter(Protocol):
    """One draft model with the contexts of all its rows. Not thread-safe."""

    name: str  # of the architecture, for people
    # Whether `extend` takes pending tokens, without features: what follows drafts behind any
    # prefix of them by `context_lens`, and they are truncated when their features arrive. Else
    # every block has to bring them as its gap.
    holds_pending_tokens: bool
    # Whether `draft` goes token by token, and stops when `DraftBatch.due_s` comes.
    stops_in_time: bool

    @property
    def gamma(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def feature_size(self) -> int:
        """Width of `ContextUpdate.features`; 0 for a drafter that reads token ids alone."""
        ...

    @property
    def features(self) -> "FeatureSpec | None":
        """What the target has to send; None for a drafter that reads token ids alone."""
        ...

    def context_len(self, row: int) -> int:
        """Positions of `row` that are in its context; 0 for an unknown row."""
        ...

    def extend(self, update: ContextUpdate) -> None:
        """Append verified tokens. ValueError for a gap or overlap, `Exhausted` without memory."""
        ...

    def draft(self, batch: DraftBatch, sampler: DraftSampler) -> SpeculationBatch:
        """Draft a block after every anchor; contexts are left as they are.

        ValueError for an empty context, or for a gap where the drafter cannot bridge one.
        """
        ...

    def truncate(self, row: int, length: int) -> None:
        """Forget what is at position `length` and beyond."""
        ...

    def free(self, row: int) -> None:
        """Forget the row; an unknown one is ignored."""
        ...


@dataclass(frozen=True)
class FeatureSpec:
    """What the target has to keep for a drafter: residuals of `layers`, concatenated in order.

    A layer's residual is its raw output, before any norm; -1 names the embeddings. `project` turns
    [N, len(layers) * hidden] into the features [N, hidden] of a `ContextUpdate`.
    """

    layers: tuple[int, ...]
    project: "FeatureProjection"


class FeatureProjection(Protocol):
    def __call__(self, features: Tensor) -> Tensor: ...
