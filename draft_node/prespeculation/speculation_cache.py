"""What has been drafted: every block until the round it was made for is over.

The target names the block that it verifies by its speculation id; what that block was drawn from is
then the distribution of the outcomes to expect. Knows neither how blocks are drafted nor how they
travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draft_node.prespeculation.outcomes import NO_TOKEN
from specserve.drafters.slot_scores import BatchScores, SlotScores
from specserve.transport.link.messages import BlockKey, DraftTopK, RowReport


@dataclass(frozen=True, slots=True)
class DraftedBlock:
    """One block that was pushed."""

    speculation_id: int
    key: BlockKey
    token_ids: tuple[int, ...]  # those that count
    confidences: tuple[float, ...] | None
    scores: BatchScores | None
    place: int  # in its draft batch

    def slots(self, num_slots: int) -> SlotScores | None:
        """What its first tokens were drawn from."""
        return None if self.scores is None else self.scores.slots(self.place, num_slots)


def told_block(row: RowReport, draft_top_k: DraftTopK, device: torch.device) -> DraftedBlock:
    """The pending block as the target that drafted it tells of it; its id is 0, as of no push."""
    num_slots = draft_top_k.slot_ids.shape[0]
    scores = BatchScores(
        width=num_slots,
        num_scored=draft_top_k.slot_ids.shape[1],
        top=SlotScores(
            torch.as_tensor(draft_top_k.slot_ids).to(device, torch.int64),
            torch.as_tensor(draft_top_k.slot_scores).to(device, copy=True),
        ),
        logits=None,
        scales=torch.ones(1, device=device),  # applied by the target
        target_ids=None,
    )
    confidences = tuple(draft_top_k.confidences.tolist()) or None
    # Tokens are counted by slots: what would have followed the last one, nobody said.
    token_ids = (*row.block.tolist(), NO_TOKEN)[:num_slots]
    return DraftedBlock(0, _key_of(row), token_ids, confidences, scores, place=0)


@dataclass(slots=True)
class CacheStatistics:
    """Counts since the start of the process, over all streams."""

    num_blocks: int = 0
    num_pushes: int = 0
    num_dropped: int = 0  # pushes that the link had no room for
    num_hits: int = 0  # rounds that verify a block of ours
    num_late: int = 0  # rounds that do not although the block was drafted: it came too late
    num_misses: int = 0  # rounds whose anchor was not among the outcomes prepared


class SpeculationCache:
    """Blocks by stream, for the pending round and the next."""

    def __init__(self) -> None:
        self.statistics = CacheStatistics()
        self._streams: dict[int, dict[int, DraftedBlock]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def next_id(self) -> int:
        """Above 0 and unique in the life of the process, hence within an epoch."""
        self._last_id += 1
        return self._last_id

    def add(self, blocks: Sequence[DraftedBlock]) -> None:
        for block in blocks:
            self._streams.setdefault(block.key.stream, {})[block.speculation_id] = block
        self.statistics.num_blocks += len(blocks)

    def settle(self, row: RowReport, *, is_new: bool = True) -> DraftedBlock | None:
        """A round has begun: its own block if there is one, verified or not; forgets the others.

        A second report of a round, not `is_new`, does not count as another.
        The block verified is the one that the row names. Failing that, a block that was drafted
        for this very anchor still tells what follows it.
        """
        blocks = self._streams.get(row.stream, {})
        block = blocks.get(row.speculation_id)
        if block is None or not _follows(block, row):
            block = next((other for other in blocks.values() if _follows(other, row)), None)
        if is_new:
            self._count(row, block)
        kept = {
            number: other
            for number, other in blocks.items()
            if other is block or other.key.round > row.round
        }
        self._streams[row.stream] = kept
        return block

    def discard(self, blocks: Sequence[DraftedBlock]) -> None:
        """These did not go out."""
        for block in blocks:
            self._streams.get(block.key.stream, {}).pop(block.speculation_id, None)

    def free(self, streams: Sequence[int]) -> None:
        """These have ended."""
        for stream in streams:
            self._streams.pop(stream, None)

    def clear(self) -> None:
        self._streams.clear()

    def _count(self, row: RowReport, block: DraftedBlock | None) -> None:
        if block is None:
            self.statistics.num_misses += 1
        elif row.speculation_id == block.speculation_id:
            self.statistics.num_hits += 1
        else:
            self.statistics.num_late += 1


def _key_of(row: RowReport) -> BlockKey:
    return BlockKey(row.stream, row.round, row.position, row.anchor_id)


def _follows(block: DraftedBlock, row: RowReport) -> bool:
    return block.key == _key_of(row)
