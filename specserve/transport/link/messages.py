"""What a round's exchange says: a `Report` to the draft, `Push`es to the target.

A *stream* is one running sample; the target numbers streams and never uses a number twice. The
target reports every round as it starts: what was verified since, the anchor, and the block that
is pending behind it. The draft answers with blocks for the outcomes that it thinks likely.

What nodes look at are numpy arrays on the host. What only a device reads, features, draft top-k and
distributions, may be in its memory instead: all of a message, and then over a link that carries
tensors. Positions are absolute, rounds those of a stream.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]


class DeviceArray(Protocol):
    """Entries of four bytes each in a device's memory, such as a torch tensor: no torch here."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def reshape(self, *shape: int) -> Self: ...
    def __getitem__(self, place: int | slice | tuple[int | slice, ...], /) -> Self: ...


Ids = Tokens | DeviceArray  # int32
Numbers = Floats | DeviceArray  # float32


class BlockKey(NamedTuple):
    """The one place where a block can be verified: after this anchor, in this round."""

    stream: int
    round: int  # of the stream, in which the block would be verified
    position: int  # of the anchor
    anchor_id: int


@dataclass(frozen=True, slots=True)
class DraftTopK:
    """What the target says of a block that it drafted itself, so that nobody drafts it again.

    Slot k tells which tokens may stand behind k tokens of the block, as `SlotScores` does.
    """

    confidences: Floats  # [verify_len]; [0] where the drafter has none
    slot_ids: Ids  # [S, M], S up to verify_len + 1
    slot_scores: Numbers  # [S, M]


@dataclass(frozen=True, slots=True)
class RowReport:
    """One stream at the start of its round `round`, whose forward reads anchor and block."""

    stream: int
    round: int
    seed: int  # int64: seed bits of the request's noise; in the rejection family its nonce
    sample_index: int
    method: str  # a VerificationMethod's value; at temperature 0 every method is greedy
    temperature: float  # 0: greedy
    start: int  # position of the first of `token_ids`
    token_ids: Tokens  # [n + 1] verified since the last report, then the anchor
    features: Numbers  # [n, H] of the verified ones; [n, 0] for drafters that read token ids alone
    block: Tokens  # [verify_len] the drafted tokens under verification
    speculation_id: int  # of the push they come from; 0: from none, or there are none
    awaits: bool = False  # the target waits for a block after this anchor, in this round
    draft_top_k: DraftTopK | None = None  # of a block that comes from no push

    @property
    def position(self) -> int:
        """Of the anchor."""
        return self.start + len(self.token_ids) - 1

    @property
    def anchor_id(self) -> int:
        return int(self.token_ids[-1])


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of one target round that a draft process is concerned with, in one frame."""

    rows: list[RowReport]
    # The target looks for pushes about so long after it reported, in seconds; 0: it cannot tell.
    round_latency_s: float = 0.0
    # When that was, by `time.perf_counter`, which is one clock on one machine; 0: it does not say.
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Push:
    """One draft batch: B blocks of up to G tokens.

    The distribution that the tokens were drawn from, M entries a token in canonical form
    (`DraftProbs`), travels in the rejection family only.
    """

    keys: list[BlockKey]  # [B]
    speculation_ids: list[int]  # [B], above 0, unique within an epoch
    lengths: list[int]  # [B] tokens that count in each block
    token_ids: Tokens  # [B, G]
    confidences: Floats  # [B, G]; [B, 0] where the drafter has none
    kept_ids: Ids  # [B, G, M]; M = 0 without a distribution
    kept_probs: Numbers  # [B, G, M]
    draft_batch_s: float = 0.0  # seconds that drafting them took
