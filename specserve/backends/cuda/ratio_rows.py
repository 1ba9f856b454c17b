"""A round's rows under the ratio test as arrays on the host, read at once by a graph.

Making a batch of tensors of them takes as long as judging them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from specserve.noise import OnceKeys, Purpose, once_words
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod


class RatioRows(NamedTuple):
    """B rows with N logits rows: see `verify`."""

    starts: np.ndarray  # int64 [B]
    verify_lens: np.ndarray  # int64 [B]
    drafted: np.ndarray  # int64 [N]
    # int64 [N]: which of the draft distributions belongs to a logits row that verifies a token.
    probs_rows: np.ndarray
    temperatures: np.ndarray  # float32 [N]
    cuts: np.ndarray  # float64 [N, 3]: top_k, top_p and min_p; 0, 1 and 0 are off
    uniforms: np.ndarray  # float32 [N]
    keys: np.ndarray  # int64 [4, N], of the next token: positions, sample and purpose words, seeds


def ratio_rows(rows: Sequence[RowToVerify]) -> RatioRows:
    """Of rows that draw, all under the method of the first.

    ValueError for a round or branch too large for its key.
    """
    sizes = [len(row.drafted) + 1 for row in rows]
    # Lists of the few numbers there are: every array that is begun costs as much as all of them.
    starts, drafted, probs_rows, temperatures = (
        list[int](),
        list[int](),
        list[int](),
        list[float](),
    )
    cuts: list[tuple[float, float, float]] = []
    once, shared = _Words([], [], [], []), _Words([], [], [], [])
    for row, size in zip(rows, sizes, strict=True):
        state, first_probs = row.state, len(probs_rows) - len(starts)
        starts.append(len(drafted))
        drafted += (*row.drafted, NO_TOKEN)
        probs_rows += (*range(first_probs, first_probs + size - 1), 0)
        temperatures += [state.temperature] * size
        cuts += [(state.params.top_k, state.params.top_p, state.params.min_p)] * size
        sample_word, branch_word = once_words(state.sample_index, row.round_id, row.branch)
        positions = range(state.position, state.position + size)
        once.add(positions, sample_word, branch_word, state.seed_bits)
        shared.add(positions, state.sample_index, int(Purpose.OUTPUT), state.seed_bits)
    keys = (
        shared if rows[0].method is VerificationMethod.FORESEEABLE else once.plus(Purpose.RECOVERY)
    )
    return RatioRows(
        starts=np.array(starts),
        verify_lens=np.array(sizes) - 1,
        drafted=np.array(drafted),
        probs_rows=np.array(probs_rows),
        temperatures=np.array(temperatures, np.float32),
        cuts=np.array(cuts, np.float64),
        uniforms=_uniforms(once),
        keys=keys.array(),
    )


class _Words(NamedTuple):
    """Keys of noise, a list for each word of theirs."""

    positions: list[int]
    samples: list[int]
    purposes: list[int]
    seeds: list[int]

    def add(self, positions: Sequence[int], sample: int, purpose: int, seed: int) -> None:
        size = len(positions)
        self.positions.extend(positions)
        self.samples.extend([sample] * size)
        self.purposes.extend([purpose] * size)
        self.seeds.extend([seed] * size)

    def plus(self, purpose: Purpose) -> "_Words":
        return self._replace(purposes=[word + int(purpose) for word in self.purposes])

    def array(self) -> np.ndarray:
        """int64 [4, N]."""
        return np.array(self, np.int64)


def _uniforms(once: _Words) -> np.ndarray:
    """By which drafted tokens stand, float32 [N]."""
    positions, sample_words, branch_words, nonces = torch.from_numpy(once.array())
    return (
        OnceKeys(nonces, positions, sample_words, branch_words).uniform(Purpose.ACCEPTANCE).numpy()
    )
