"""All that tells rounds of one shape apart, but logits and draft distributions: one packed tensor.

Filled on the host from the rows' states, where a list of tensors would take as long as verifying
them, and read on the device by a graph.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda.edit_tables import EditTables, Table, fill_edits
from specserve.backends.cuda.packed import Place, laid_over, num_words
from specserve.backends.cuda.round_shape import RoundShape
from specserve.noise import Purpose, once_words
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod


class RowTables(NamedTuple, Generic[Table]):
    """B rows with N rows of logits, L of which list log probabilities. int64 unless it is said."""

    starts: Table  # [B], where each row begins among the N
    verify_lens: Table  # [B]
    is_ratio: Table  # [B], 1 for rows under the ratio test
    drafted: Table  # [N], the token each verifies; NO_TOKEN where a row ends
    row_of: Table  # [N], whose they are
    is_greedy: Table  # [N], 1 or 0
    probs_rows: Table  # [N], which draft distribution is of the token that is verified
    temperatures: Table  # float64 [N]
    keys: Table  # [4, N], of the next token: positions, sample and purpose words, seeds
    once: Table  # [2, N], of whether a token stands: sample and branch words
    top_k: Table  # [N], 0 is off
    top_p: Table  # float64 [N], 1 is off
    min_p: Table  # float64 [N], 0 is off
    listed: Table  # [L], rows of logits

    @staticmethod
    def places(shape: RoundShape) -> list[Place]:
        """Where the tables of such rounds lie, in this order."""
        rows, logits = Place((shape.num_rows,)), Place((shape.num_logits,))
        num_tested = shape.num_logits if shape.num_kept else 0
        num_cut = shape.num_logits if shape.cuts is not None else 0
        return [
            *(rows, rows, rows),
            *(logits, logits, logits, Place((num_tested,))),
            *(Place((shape.num_logits,), torch.float64), Place((4, shape.num_logits))),
            Place((2, num_tested)),
            *(
                Place((num_cut,)),
                Place((num_cut,), torch.float64),
                Place((num_cut,), torch.float64),
            ),
            Place((shape.num_listed,)),
        ]


class DeviceTables(NamedTuple):
    """Views of `words`, int64."""

    words: Tensor
    rows: RowTables[Tensor]
    edits: EditTables[Tensor]

    @classmethod
    def over(cls, words: Tensor, shape: RoundShape) -> "DeviceTables":
        """Of words as `HostTables` has them."""
        of_rows = RowTables.places(shape)
        found = laid_over(words, of_rows + EditTables.places(shape))
        count = len(of_rows)
        return cls(words, RowTables(*found[:count]), EditTables(*found[count:]))


class HostTables:
    """The same tables as arrays, which rounds are written to."""

    def __init__(self, shape: RoundShape) -> None:
        places = RowTables.places(shape) + EditTables.places(shape)
        self.words = torch.zeros(num_words(places), dtype=torch.int64)
        _, of_rows, of_edits = DeviceTables.over(self.words, shape)
        self._rows = RowTables(*(table.numpy() for table in of_rows))
        self._edits = EditTables(*(table.numpy() for table in of_edits))
        self._shape = shape

    def fill(self, rows: Sequence[RowToVerify], by_ratio: Sequence[bool]) -> None:
        """From one round's; what is behind them is that of some round before.

        ValueError for a round or branch too large for its key.
        """
        own, count = self._rows, len(rows)
        sizes = np.array([len(row.drafted) + 1 for row in rows])
        starts = sizes.cumsum() - sizes
        row_of = np.arange(count).repeat(sizes)
        num_logits = len(row_of)
        offsets = np.arange(num_logits) - starts[row_of]
        own.starts[:count] = starts
        own.verify_lens[:count] = sizes - 1
        own.is_ratio[:count] = by_ratio
        own.row_of[:num_logits] = row_of
        own.drafted[:num_logits] = [i for row in rows for i in (*row.drafted, NO_TOKEN)]
        integers = np.array(
            [_words(row, is_tested) for row, is_tested in zip(rows, by_ratio, strict=True)]
        )[row_of].T
        own.keys[:, :num_logits] = integers[:4]
        own.keys[0, :num_logits] += offsets
        own.is_greedy[:num_logits] = integers[4]
        own.temperatures[:num_logits] = np.array([row.state.temperature for row in rows])[row_of]
        if self._shape.num_kept:
            own.once[:, :num_logits] = integers[5:]
            is_tested = np.array(by_ratio)[row_of] & (offsets < sizes[row_of] - 1)
            own.probs_rows[:num_logits] = np.where(is_tested, is_tested.cumsum() - 1, 0)
        if self._shape.cuts is not None:
            cuts = np.array([_cuts(row.state) for row in rows])[row_of].T
            own.top_k[:num_logits], own.top_p[:num_logits], own.min_p[:num_logits] = cuts
        if self._shape.num_listed:
            asks = np.array([row.state.params.logprobs is not None for row in rows])
            listed = asks[row_of].nonzero()[0]
            own.listed[: len(listed)] = listed
        if self._shape.edits is not None:
            fill_edits(self._edits, rows, starts.tolist())


def _words(row: RowToVerify, is_tested: bool) -> tuple[int, ...]:
    """Position of its first token, words of the next token's noise; 1 if it is greedy.

    And sample and branch word of the test's noise.
    """
    state = row.state
    sample_word, purpose_word = state.sample_index, int(Purpose.OUTPUT)
    once_sample, branch = 0, 0
    if is_tested:
        once_sample, branch = once_words(state.sample_index, row.round_id, row.branch)
        if row.method is VerificationMethod.REJECTION:
            sample_word, purpose_word = once_sample, branch + int(Purpose.RECOVERY)
    noise = state.position, sample_word, purpose_word, state.seed_bits
    return *noise, int(state.is_greedy), once_sample, branch


def _cuts(state: SamplingState) -> tuple[float, float, float]:
    """top_k, top_p and min_p."""
    if state.is_greedy:
        return 0.0, 1.0, 0.0
    return state.params.top_k, state.params.top_p, state.params.min_p
