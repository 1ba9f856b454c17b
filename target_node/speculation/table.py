"""Blocks that draft processes pushed, by the one place where each may be verified.

The first push of a key wins; blocks of rounds that are over or never were are dropped. A wrong or
late block costs nothing but its place: a key that nobody looks up never shows.

Keys, tokens and confidences are the host's, distributions are where they have landed: over NCCL in
the device's memory.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from specserve.transport.link.messages import BlockKey, Push

# A draft that floods fills no memory: blocks of one stream and round, ...
MAX_BLOCKS = 2048
MAX_KEPT_BYTES = 256 * 1024 * 1024  # ... and distributions, of all pushes that have a block here


@dataclass(frozen=True, slots=True)
class PushedBlock:
    """One block of a push, which holds tokens, confidences and distributions of all of them."""

    push: Push
    place: int

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.push.token_ids[self.place, : self.push.lengths[self.place]].tolist())

    @property
    def confidences(self) -> tuple[float, ...] | None:
        """P(token k accepted | those before it were); None: the drafter has no opinion."""
        row = self.push.confidences[self.place]
        return tuple(row[: self.push.lengths[self.place]].tolist()) if len(row) else None

    @property
    def speculation_id(self) -> int:
        return self.push.speculation_ids[self.place]

    @property
    def has_probs(self) -> bool:
        return self.push.kept_ids.shape[2] > 0


class SpeculationTable:
    """The pushed blocks of all live streams."""

    def __init__(self) -> None:
        self._places: dict[int, dict[BlockKey, tuple[Push, int]]] = {}  # by stream
        self.num_draft_batches = 0
        self.num_late_draft_batches = 0  # without a block that could still be used
        self.draft_batch_s = 0.0
        self._kept_bytes = 0

    def add(self, push: Push, round_of: Callable[[int], int | None]) -> None:
        """Take over the blocks for the coming round of each stream, None for one that has ended."""
        self.num_draft_batches += 1
        self.draft_batch_s += push.draft_batch_s
        push = self._bounded(push)
        is_late = True
        for place, key in enumerate(push.keys):
            if round_of(key.stream) != key.round:
                continue
            is_late = False
            places = self._places.setdefault(key.stream, {})
            if len(places) < MAX_BLOCKS:
                places.setdefault(key, (push, place))
        self.num_late_draft_batches += is_late

    def _bounded(self, push: Push) -> Push:
        """Without its distributions where there is no more room; counted until nobody has it."""
        num_bytes = push.kept_ids.nbytes + push.kept_probs.nbytes
        if not num_bytes:
            return push
        if self._kept_bytes + num_bytes > MAX_KEPT_BYTES:
            none = (slice(None), slice(None), slice(0))
            return replace(push, kept_ids=push.kept_ids[none], kept_probs=push.kept_probs[none])
        self._kept_bytes += num_bytes
        weakref.finalize(push, self._give_back, num_bytes).atexit = False
        return push

    def _give_back(self, num_bytes: int) -> None:
        self._kept_bytes -= num_bytes

    def num_blocks(self, stream: int) -> int:
        """That are there for the stream's coming round."""
        return len(self._places.get(stream, ()))

    def find(self, key: BlockKey) -> PushedBlock | None:
        """The block with this key; all others of its stream are dropped."""
        found = self._places.pop(key.stream, {}).get(key)
        return None if found is None else PushedBlock(*found)

    def forget(self, stream: int) -> None:
        """The stream has ended."""
        self._places.pop(stream, None)
