"""What has been drafted: every block until the round it was made for is over.

The target names the block that it verifies by its speculation id; what that block was drawn from is
then the law of the outcomes to expect. Knows neither how blocks are drafted nor how they travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from draft_node.outcomes import SlotScores
from specserve.drafting import SpeculationBatch
from specserve.link.messages import BlockKey, RowReport

# Blocks of larger vocabularies keep their likeliest tokens at once; for smaller ones, keeping all
# logits of all branches costs less than sorting those of the many that will never be verified.
_MAX_KEPT_COLUMNS = 1 << 15


@dataclass(frozen=True, slots=True)
class WaveScores:
    """What the B blocks of a wave were drawn from, slot by slot."""

    width: int  # G
    num_scored: int
    top: SlotScores | None  # [B * G] slots, or
    logits: Tensor | None  # [B, G, DV]
    scales: Tensor  # [B] 1 / temperature, 1 at temperature 0
    target_ids: Tensor | None  # of the columns

    @staticmethod
    def of(drawn: SpeculationBatch, scales: Tensor, num_scored: int) -> "WaveScores | None":
        """The `num_scored` likeliest tokens count; None if the drafter says nothing of the kind."""
        width = drawn.token_ids.shape[1]
        top, logits, target_ids = None, drawn.logits, drawn.target_ids
        if logits is None:
            if drawn.law is None:
                return None
            top = SlotScores.of_law(drawn.law)
        elif logits.shape[2] > _MAX_KEPT_COLUMNS:
            repeated = scales.repeat_interleave(width)
            top = SlotScores.of_logits(logits.flatten(0, 1), repeated, num_scored, target_ids)
            logits = None
        return WaveScores(width, num_scored, top, logits, scales, target_ids)

    def slots(self, place: int, num_slots: int) -> SlotScores:
        """Of the first slots of block `place`."""
        if self.logits is None:
            assert self.top is not None
            part = slice(place * self.width, place * self.width + num_slots)
            return SlotScores(self.top.ids[part], self.top.scores[part])
        scales = self.scales[place].expand(num_slots)
        logits = self.logits[place, :num_slots]
        return SlotScores.of_logits(logits, scales, self.num_scored, self.target_ids)


@dataclass(frozen=True, slots=True)
class DraftedBlock:
    """One block that was pushed."""

    speculation_id: int
    key: BlockKey
    token_ids: tuple[int, ...]  # those that count
    confidences: tuple[float, ...] | None
    scores: WaveScores | None
    place: int  # in its wave

    def slots(self, num_slots: int) -> SlotScores | None:
        """What its first tokens were drawn from."""
        return None if self.scores is None else self.scores.slots(self.place, num_slots)


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
    """Blocks by stream, for the round in flight and the next."""

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


def _follows(block: DraftedBlock, row: RowReport) -> bool:
    return block.key == (row.stream, row.round, row.position, row.anchor_id)
