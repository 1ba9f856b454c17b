"""The rows of one round as device tensors, grouped by how their drafted tokens are verified.

A row brings `verify_len + 1` logits rows, one after the other: the first verifies its first drafted
token, the last verifies none. Rows may differ in length and method; nothing is padded. Knows no
logits and no distributions, and receives no confidences: what was admitted is settled before
anything comes here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.noise import OnceKeys
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.method import VerificationMethod, verified_by


@dataclass(frozen=True, slots=True)
class RowToVerify:
    """One row on the host. In the rejection family the seed of `state` is the request's nonce."""

    method: VerificationMethod
    state: SamplingState  # of the token after the anchor
    drafted: Sequence[int] = ()  # those admitted, ids of the vocabulary
    round_id: int = 0  # the sample's rounds, counted; rejection family only, as is branch
    branch: int = 0  # which of the blocks drafted for this round; never one number for two

    @property
    def verified_by(self) -> VerificationMethod:
        return verified_by(self.method, is_greedy=self.state.is_greedy)


def by_ratio(rows: Sequence[RowToVerify]) -> list[bool]:
    """Which of the rows are verified by the ratio test.

    One without drafted tokens has nothing to be tested: where no row beside it has either, it is
    sampled as under equality, which costs less. Rows with a grammar have each other beside them.
    """
    tested = {
        row.state.grammar is not None
        for row in rows
        if row.drafted and row.verified_by is not VerificationMethod.COUPLED
    }
    return [
        (row.state.grammar is not None) in tested
        and row.verified_by is not VerificationMethod.COUPLED
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """B rows under one method, with N logits rows."""

    method: VerificationMethod
    rows: Tensor  # int64 [B], places in the batch
    logits_rows: Tensor | None  # int64 [N]; None: all, in order
    sampling: SamplingBatch  # of the N logits rows
    drafted: Tensor  # int64 [N], the token each verifies; NO_TOKEN where a row ends
    starts: Tensor  # int64 [B], where each row begins among the N
    verify_lens: Tensor  # int64 [B]
    max_verify_len: int
    ratio: "RatioKeys | None"  # None: verified by equality


@dataclass(frozen=True, slots=True)
class RatioKeys:
    """What the rejection family needs besides."""

    once: OnceKeys  # of the N logits rows
    # Int64 [D], the distributions of the group's D drafted tokens among all distributions given.
    probs_rows: Tensor
    probs_places: Tensor  # int64 [D], and where those tokens are among the N


@dataclass(frozen=True, slots=True)
class VerificationBatch:
    """Rows with their `num_logits` logits rows; `num_probs` tokens need draft probabilities."""

    num_rows: int
    num_logits: int
    num_probs: int
    groups: tuple[RowGroup, ...]

    @staticmethod
    def build(
        rows: Sequence[RowToVerify], device: torch.device | str = "cpu"
    ) -> "VerificationBatch":
        """Snapshot the rows. ValueError for a round or branch too large for its key."""
        num_logits = [len(row.drafted) + 1 for row in rows]
        needs_probs = [row.verified_by is not VerificationMethod.COUPLED for row in rows]
        num_probs = [
            n - 1 if needs else 0 for n, needs in zip(num_logits, needs_probs, strict=True)
        ]
        layout = _Layout(rows, _starts(num_logits), _starts(num_probs), device)
        groups = (layout.group(kind) for kind in _KINDS)
        return VerificationBatch(
            num_rows=len(rows),
            num_logits=sum(num_logits),
            num_probs=sum(num_probs),
            groups=tuple(group for group in groups if group is not None),
        )


# Rows of a group are verified together; under the ratio test those whose distributions nothing
# edits have a group of their own, since theirs is the faster way.
_Kind = tuple[VerificationMethod, bool]
_KINDS: tuple[_Kind, ...] = tuple(itertools.product(VerificationMethod, (False, True)))


def _kind(row: RowToVerify) -> _Kind:
    method = row.verified_by
    return method, row.state.edits_logits and method is not VerificationMethod.COUPLED


def _starts(lengths: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(lengths, initial=0))[:-1]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where each row's logits and distributions begin, on the host."""

    rows: Sequence[RowToVerify]
    logits_starts: list[int]
    probs_starts: list[int]
    device: torch.device | str

    def group(self, kind: "_Kind") -> RowGroup | None:
        places = [i for i, row in enumerate(self.rows) if _kind(row) == kind]
        if not places:
            return None
        method, _ = kind
        rows = [self.rows[i] for i in places]
        states = [state for row in rows for state in row.state.along(row.drafted)]
        verify_lens = [len(row.drafted) for row in rows]
        starts = _starts([n + 1 for n in verify_lens])
        drafted = [token_id for row in rows for token_id in (*row.drafted, NO_TOKEN)]
        return RowGroup(
            method=method,
            rows=self._ints(places),
            logits_rows=None
            if len(places) == len(self.rows)
            else self._ints(_runs([self.logits_starts[i] for i in places], verify_lens, extra=1)),
            sampling=SamplingBatch.build(states, self.device),
            drafted=self._ints(drafted),
            starts=self._ints(starts),
            verify_lens=self._ints(verify_lens),
            max_verify_len=max(verify_lens),
            ratio=None
            if method is VerificationMethod.COUPLED
            else RatioKeys(
                once=self._once_keys(rows, states),
                probs_rows=self._ints(_runs([self.probs_starts[i] for i in places], verify_lens)),
                probs_places=self._ints(_runs(starts, verify_lens)),
            ),
        )

    def _once_keys(self, rows: list[RowToVerify], states: list[SamplingState]) -> OnceKeys:
        row_of = [row for row in rows for _ in range(len(row.drafted) + 1)]
        return OnceKeys.build(
            nonces=[state.seed_bits for state in states],
            sample_indices=[state.sample_index for state in states],
            rounds=[row.round_id for row in row_of],
            branches=[row.branch for row in row_of],
            positions=[state.position for state in states],
            device=self.device,
        )

    def _ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _runs(starts: Sequence[int], lengths: Sequence[int], extra: int = 0) -> list[int]:
    """The integers of all runs, one run after the other."""
    return [
        index
        for start, length in zip(starts, lengths, strict=True)
        for index in range(start, start + length + extra)
    ]
