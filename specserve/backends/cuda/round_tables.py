"""All that tells rounds of one shape apart, but logits and draft distributions: one packed tensor.

Filled on the host from the rows' states, where a list of tensors would take as long as verifying
them, and read on the device by a graph.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cuda.edit_tables import EditTables
from specserve.backends.cuda.packed import Place, laid_over, num_words
from specserve.backends.cuda.round_shape import RoundShape
from specserve.noise import Purpose, once_words
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod


class RowTables(NamedTuple):
    """B rows with N rows of logits, L of which list log probabilities. int64 unless it is said."""

    starts: Tensor  # [B], where each row begins among the N
    verify_lens: Tensor  # [B]
    is_ratio: Tensor  # [B], 1 for rows under the ratio test
    drafted: Tensor  # [N], the token each verifies; NO_TOKEN where a row ends
    row_of: Tensor  # [N], whose they are
    is_greedy: Tensor  # [N], 1 or 0
    probs_rows: Tensor  # [N], which draft distribution is of the token that is verified
    temperatures: Tensor  # float64 [N]
    keys: Tensor  # [4, N], of the next token: positions, sample and purpose words, seeds
    once: Tensor  # [2, N], of whether a token stands: sample and branch words
    top_k: Tensor  # [N], 0 is off
    top_p: Tensor  # float64 [N], 1 is off
    min_p: Tensor  # float64 [N], 0 is off
    listed: Tensor  # [L], rows of logits

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


class RoundTables(NamedTuple):
    """Views of `words`."""

    words: Tensor  # int64
    rows: RowTables
    edits: EditTables

    @classmethod
    def empty(cls, shape: RoundShape) -> "RoundTables":
        """On the host."""
        places = RowTables.places(shape) + EditTables.places(shape)
        return cls.over(torch.zeros(num_words(places), dtype=torch.int64), shape)

    @classmethod
    def over(cls, words: Tensor, shape: RoundShape) -> "RoundTables":
        """The same of such words elsewhere."""
        of_rows = RowTables.places(shape)
        found = laid_over(words, of_rows + EditTables.places(shape))
        count = len(of_rows)
        return cls(words, RowTables(*found[:count]), EditTables(*found[count:]))

    def fill(self, rows: Sequence[RowToVerify], by_ratio: Sequence[bool]) -> None:
        """From one round's; what is behind them is that of some round before.

        ValueError for a round or branch too large for its key.
        """
        sizes = np.array([len(row.drafted) + 1 for row in rows])
        starts = sizes.cumsum() - sizes
        row_of = np.arange(len(rows)).repeat(sizes)
        offsets = np.arange(len(row_of)) - starts[row_of]
        is_tested = np.array(by_ratio)[row_of] & (offsets < sizes[row_of] - 1)
        own = self.rows
        _put(own.starts, starts)
        _put(own.verify_lens, sizes - 1)
        _put(own.is_ratio, np.array(by_ratio))
        _put(own.drafted, np.array([i for row in rows for i in (*row.drafted, NO_TOKEN)]))
        _put(own.row_of, row_of)
        _put(own.probs_rows, np.where(is_tested, is_tested.cumsum() - 1, 0))
        self._fill_parameters(rows, row_of)
        self._fill_keys(rows, by_ratio, row_of, offsets)
        asks = np.array([row.state.params.logprobs is not None for row in rows])
        _put(own.listed, asks[row_of].nonzero()[0])
        if self.edits.masks.numel() or self.edits.seen_ids.numel() or self._edits_few:
            self.edits.fill(rows, starts.tolist())

    @property
    def _edits_few(self) -> bool:
        """Whether single logits are edited by lists of a request's own."""
        return bool(self.edits.bias_ids.numel() or self.edits.forbidden_ids.numel())

    def _fill_parameters(self, rows: Sequence[RowToVerify], row_of: np.ndarray) -> None:
        own, states = self.rows, [row.state for row in rows]
        _put(own.is_greedy, np.array([state.is_greedy for state in states])[row_of])
        _put(own.temperatures, np.array([state.temperature for state in states])[row_of])
        if not own.top_k.numel():
            return
        cuts = [
            (0.0, 1.0, 0.0)
            if state.is_greedy
            else (state.params.top_k, state.params.top_p, state.params.min_p)
            for state in states
        ]
        top_k, top_p, min_p = np.array(cuts)[row_of].T
        _put(own.top_k, top_k.astype(np.int64))
        _put(own.top_p, top_p)
        _put(own.min_p, min_p)

    def _fill_keys(
        self,
        rows: Sequence[RowToVerify],
        by_ratio: Sequence[bool],
        row_of: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        words = [_words(row, is_tested) for row, is_tested in zip(rows, by_ratio, strict=True)]
        columns = np.array(words, np.int64)[row_of].T
        columns[0] += offsets
        _put(self.rows.keys, columns[:4])
        if self.rows.once.numel():
            _put(self.rows.once, columns[4:])


def _words(row: RowToVerify, is_tested: bool) -> tuple[int, int, int, int, int, int]:
    """Position of its first token, words of the next token's noise, and those of the test."""
    state = row.state
    sample_word, purpose_word = state.sample_index, int(Purpose.OUTPUT)
    once_sample, branch = 0, 0
    if is_tested:
        once_sample, branch = once_words(state.sample_index, row.round_id, row.branch)
        if row.method is VerificationMethod.REJECTION:
            sample_word, purpose_word = once_sample, branch + int(Purpose.RECOVERY)
    return state.position, sample_word, purpose_word, state.seed_bits, once_sample, branch


def _put(table: Tensor, values: np.ndarray) -> None:
    """Into its first columns, if it has any."""
    if table.numel():
        table.numpy()[..., : values.shape[-1]] = values
