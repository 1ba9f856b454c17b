"""What a graph of a round's verification is of: sizes of its tables, and what is done at all.

Sizes are padded to few and whatever can be data is data, so that rounds share graphs. A round that
no graph is made for says which limit it passed.
"""

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.backends.cuda.graphs import bucket_of, padded
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.batch import RowToVerify

# Padded. Kernels of more take longer than all of a round's take to be begun: 64 rows of the largest
# vocabularies are fewer. With top_p all of them are sorted, which the reference need not do.
MOST_LOGITS, _MOST_SORTED = 1 << 24, 1 << 22
# Distinct tokens of a row with penalties. Few sizes: each is another graph.
SEEN_SIZES = (64, 512, 4096, 16384)
MOST_SEEN_IN_ALL = 1 << 20  # padded, of all rows
# The same of what else requests ask for: a graph holds all that is up to its size, and whoever asks
# for what nobody asked for before makes everybody wait for a capture.
_TOP_K_SIZES = (64, 1024)
_PATH_SIZES = (4, 16)
_BIAS_SIZES = (16, 512)
_FORBIDDEN_SIZES = (4, 64)
_TOP_SIZES = (5, 20)  # alternatives of log probabilities

_LOG = logging.getLogger(__name__)


class Cuts(NamedTuple):
    """What has to be done for some row that truncates."""

    max_top_k: int  # padded
    any_top_p: bool

    @classmethod
    def of(cls, states: Sequence[SamplingState]) -> "Cuts | None":
        cut = [each.params for each in states if each.is_truncated and not each.is_greedy]
        if not cut:
            return None
        max_top_k = max(params.top_k for params in cut)
        return cls(_size(max_top_k, _TOP_K_SIZES), any(params.top_p < 1 for params in cut))


class EditSizes(NamedTuple):
    """Entries that a row's tables of edits have; 0 where no row has any."""

    num_seen: int  # distinct tokens that penalties are of
    num_path: int  # those of drafted tokens
    num_biases: int
    num_forbidden: int
    num_masks: int  # of all rows together

    @classmethod
    def of(cls, rows: Sequence[RowToVerify]) -> "EditSizes | None":
        edited = [row for row in rows if row.state.edits_logits]
        if not edited:
            return None
        penalised = [row for row in edited if row.state.penalties is not None]
        masked = [len(row.drafted) + 1 for row in edited if row.state.grammar is not None]
        return cls(
            # One that has seen nothing yet has a table, too.
            num_seen=_size(max(1, *map(_num_seen, penalised)), SEEN_SIZES) if penalised else 0,
            num_path=_size(max((len(row.drafted) for row in penalised), default=0), _PATH_SIZES),
            num_biases=_size(max(len(row.state.bias_ids) for row in edited), _BIAS_SIZES),
            num_forbidden=_size(
                max(len(row.state.forbidden_ids) for row in edited), _FORBIDDEN_SIZES
            ),
            num_masks=bucket_of(sum(masked)) if masked else 0,
        )


class RoundShape(NamedTuple):
    """Of one graph."""

    num_rows: int  # B
    num_logits: int  # N
    vocab_size: int  # V
    device: torch.device
    any_greedy: bool  # verified by equality, as those that are drawn
    any_drawn: bool
    num_kept: int  # M, of draft distributions; 0: no row is under the ratio test
    cuts: Cuts | None
    edits: EditSizes | None
    num_listed: int  # L, logits rows whose log probabilities are asked for
    num_top: int  # K, the most alternatives one of them lists

    @classmethod
    def of(
        cls,
        logits: Tensor,
        rows: Sequence[RowToVerify],
        by_ratio: Sequence[bool],
        draft_probs: DraftProbs | None,
    ) -> "RoundShape":
        states = [row.state for row in rows]
        equal = [each for each, is_tested in zip(states, by_ratio, strict=True) if not is_tested]
        asking = [row for row in rows if row.state.params.logprobs is not None]
        most_top = max((row.state.params.logprobs or 0 for row in asking), default=0)
        return cls(
            num_rows=padded(len(rows)),
            num_logits=bucket_of(len(logits)),
            vocab_size=logits.shape[1],
            device=logits.device,
            any_greedy=any(state.is_greedy for state in equal),
            any_drawn=not all(state.is_greedy for state in equal),
            num_kept=draft_probs.ids.shape[1] if draft_probs is not None and any(by_ratio) else 0,
            cuts=Cuts.of(states),
            edits=EditSizes.of(rows),
            num_listed=bucket_of(sum(len(row.drafted) + 1 for row in asking)) if asking else 0,
            num_top=min(_size(most_top, _TOP_SIZES), logits.shape[1]),
        )

    def why_not(self) -> str:
        """The limit that rounds of this shape pass, in words; empty where there is a graph."""
        is_sorted = self.cuts is not None and self.cuts.any_top_p
        most = min(MOST_LOGITS, _MOST_SORTED) if is_sorted else MOST_LOGITS
        if self.num_logits * self.vocab_size > most:
            return f"more than {most} logits a round{' with top_p' * is_sorted}"
        num_seen = 0 if self.edits is None else self.edits.num_seen
        if num_seen > SEEN_SIZES[-1]:
            return f"penalties of a row that has seen more than {SEEN_SIZES[-1]} distinct tokens"
        if self.num_logits * num_seen > MOST_SEEN_IN_ALL:
            return f"penalties of {self.num_logits} rows of logits, {num_seen} tokens each"
        return ""


@functools.lru_cache(maxsize=64)
def say_once(obstacle: str) -> None:
    """That such rounds are verified without a graph; once a process and limit."""
    _LOG.info("verified kernel by kernel, which is slower: %s", obstacle)


def _num_seen(row: RowToVerify) -> int:
    return 0 if row.state.penalties is None else len(row.state.penalties.ids)


def _size(count: int, sizes: Sequence[int]) -> int:
    """0 for none, else the least of `sizes` that holds so many; a power of two beyond the last."""
    return next((size for size in (0, *sizes) if count <= size), padded(count))
