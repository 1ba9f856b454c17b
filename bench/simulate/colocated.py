# pyright: strict
"""A drafter beside the target, and the stubs that stand where the target computes.

Stands where `ColocatedDraft` does in a shipped source: it takes time, and its blocks are drawn.
"""

from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray

from bench.simulate.texts import Draws
from bench.simulate.virtual_time import VirtualTime
from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.protocol import StoppingThreshold
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Speculation
from target_node.planning.acceptance import FIRST
from target_node.planning.draft_pace import DraftPace
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.drafting import RowToDraft

Integers = NDArray[np.int64]


class Standing:
    """How many tokens of each row's block would stand: known to the simulator alone."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._of: dict[Sequence, int] = {}

    def draw(
        self, sequences: Rows[Sequence], num_tokens: int, *, is_prepared: bool = False
    ) -> dict[Sequence, Speculation]:
        """A block for each, all of one length."""
        if not sequences:
            return {}
        drawn = self._draws.blocks(len(sequences), num_tokens, is_prepared=is_prepared)
        told = None if drawn.confidences is None else drawn.confidences.tolist()
        found: dict[Sequence, Speculation] = {}
        for place, sequence in enumerate(sequences):
            self._of[sequence] = int(drawn.num_standing[place])
            confidences = None if told is None else tuple(told[place])
            found[sequence] = Speculation((0,) * num_tokens, confidences)
        return found

    def take(self, sequence: Sequence) -> int:
        """Of the latest block; 0 where there is none."""
        return self._of.pop(sequence, 0)


class SimulatedColocated:
    """As `target_node.speculation.drafting.ColocatedDraft` is used by sources."""

    name = "simulated"

    def __init__(
        self, times: DraftTimes, gamma: int, standing: Standing, clock: VirtualTime, *, blind: bool
    ) -> None:
        """`blind`: chains without confidences are as long as admission says."""
        self.gamma = gamma
        self.is_blind = blind and times.go_by_token
        self.pace = DraftPace(lambda: times)
        self.catching_up: frozenset[Sequence] = frozenset()
        self._times, self._standing, self._clock = times, standing, clock

    def speculate(
        self,
        rows: Rows[RowToDraft],
        *,
        num_scored: int = 0,
        threshold: StoppingThreshold | None = None,
        most: int | None = None,
    ) -> dict[Sequence, Speculation]:
        """A block for every row; the clock moves on. Chains with confidences are whole ones."""
        num_tokens = min(self.gamma, (most or FIRST) if self.is_blind else self.gamma)
        if num_scored:
            num_tokens = max(2, num_tokens)  # the last one stays behind
        seconds = self._times.seconds(len(rows), num_tokens)
        self._clock.now_s += self._times.enter_s + seconds
        self.pace.observe(len(rows), num_tokens, seconds)
        return self._standing.draw([row.sequence for row in rows], num_tokens)

    def draft_probs(self, places: Rows[tuple[int, int]]) -> None:
        """Nothing is verified by the ratio test here."""

    def forget(self, sequence: Sequence) -> None:
        """There are no contexts."""


class Places:
    """In place of a scheduler: as many drafted tokens as a forward may have, blocks for all."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def room_for_drafts(self, rows: Rows[Row]) -> int:
        return max(0, self._max_tokens - sum(row.num_tokens for row in rows))

    def drafts_with_blocks(self, rows: Rows[Row], wanted: list[int]) -> list[int]:
        return wanted

    def with_drafts(self, row: Row, speculation: Speculation, verify_len: int) -> Row:
        return row.verifying(speculation, verify_len) if verify_len else row


class Ends:
    """In place of a sampler: how requests are verified, and how many tokens they may still get."""

    def method(self, sequence: Sequence) -> VerificationMethod:
        return VerificationMethod.COUPLED

    def state(self, sequence: Sequence) -> SamplingState:
        return SamplingState(sequence.request.sampling, seed=0, prompt_token_ids=())

    def room(self, sequence: Sequence) -> int:
        return sequence.request.sampling.max_tokens - sequence.num_generated
