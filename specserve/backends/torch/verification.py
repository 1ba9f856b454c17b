"""A round's rows verified by torch's operations, in groups, and their outcomes put together.

Rows whose logits a grammar edits would take those beside them from the cheaper ways there are for
rows as they mostly are. What a row draws does not depend on its neighbours, so it may as well have
others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import torch
from torch import Tensor

from specserve.backends.base import VerifiedRows
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.logprobs import token_logprobs
from specserve.sampling.sampling import sample
from specserve.sampling.verification.batch import RowToVerify, VerificationBatch, by_ratio
from specserve.sampling.verification.method import (
    AcceptedPrefix,
    VerificationMethod,
    accepted_prefix,
)
from specserve.sampling.verification.verify import verify


@dataclass(frozen=True)
class RoundToVerify:
    """Rows, their logits row after row, and distributions of what the ratio test has to verify.

    `logits` float32 [N, V], one more than drafted tokens for each row; `draft_probs` [D].
    """

    rows: Sequence[RowToVerify]
    logits: Tensor
    draft_probs: DraftProbs | None

    def part(self, places: Sequence[int]) -> "RoundToVerify":
        """Of the rows at these places alone."""
        lens = [len(row.drafted) for row in self.rows]
        num_probs = [
            0 if row.verified_by is VerificationMethod.COUPLED else len(row.drafted)
            for row in self.rows
        ]
        draft_probs = self.draft_probs
        if draft_probs is not None:
            wanted = self._spans(num_probs, places)
            draft_probs = draft_probs.rows(wanted) if len(wanted) else None
        return RoundToVerify(
            [self.rows[place] for place in places],
            self.logits[self._spans([n + 1 for n in lens], places)],
            draft_probs,
        )

    def _spans(self, lens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Where what the rows at `places` have lies, each having as many as `lens` says."""
        ends = list(accumulate(lens))
        spans = [i for place in places for i in range(ends[place] - lens[place], ends[place])]
        return torch.tensor(spans, dtype=torch.int64, device=self.logits.device)


def verified(
    logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
) -> VerifiedRows:
    """See `Backend.verify`."""
    whole = RoundToVerify(rows, logits, draft_probs)
    has_grammar = [row.state.grammar is not None for row in rows]
    found = in_groups(whole, has_grammar, _outcomes)
    _add_logprobs(found, logits, rows)
    return found


def in_groups(
    whole: RoundToVerify,
    is_apart: Sequence[bool],
    verify_part: Callable[[RoundToVerify], VerifiedRows],
) -> VerifiedRows:
    """What `verify_part` finds, asked for the rows that are apart and for the others."""
    if len(set(is_apart)) < 2:
        return verify_part(whole)
    found = VerifiedRows.nothing(len(whole.rows))
    for wanted in (False, True):
        places = [place for place, apart in enumerate(is_apart) if apart is wanted]
        part = verify_part(whole.part(places))
        for own, place in enumerate(places):
            found.num_accepted[place] = part.num_accepted[own]
            found.next_tokens[place] = part.next_tokens[own]
            found.has_bad_logits[place] = part.has_bad_logits[own]
            found.has_broken_probs[place] = part.has_broken_probs[own]
    return found


def _outcomes(part: RoundToVerify) -> VerifiedRows:
    if not any(by_ratio(part.rows)):
        return _by_equality(part)
    device = part.logits.device
    found = verify(part.logits, VerificationBatch.build(part.rows, device), part.draft_probs)
    # One table, because each copy from a device waits for it.
    flags = found.spoiled_rows.long(), found.broken_probs.long()
    table = torch.stack((found.num_accepted, found.next_tokens, *flags))
    num_accepted, next_tokens, spoiled, broken = table.tolist()
    return VerifiedRows(
        num_accepted, next_tokens, list(map(bool, spoiled)), list(map(bool, broken))
    )


def _by_equality(part: RoundToVerify) -> VerifiedRows:
    """The cheapest way: nothing but the target's own tokens leaves the device."""
    paths = [row.state.along(row.drafted) for row in part.rows]
    batch = SamplingBatch.build([each for path in paths for each in path], part.logits.device)
    drawn = sample(part.logits, batch).token_ids.tolist()
    return by_equality(part.rows, drawn)


def by_equality(rows: Sequence[RowToVerify], drawn: list[int]) -> VerifiedRows:
    """Outcomes of rows along whose drafted tokens the target drew these, row after row."""
    prefixes: list[AcceptedPrefix] = []
    start = 0
    for row in rows:
        end = start + len(row.drafted) + 1
        prefixes.append(accepted_prefix(row.drafted, drawn[start:end]))
        start = end
    num_accepted, next_tokens, spoiled = (list(column) for column in zip(*prefixes, strict=True))
    return VerifiedRows(num_accepted, next_tokens, spoiled, [False] * len(rows))


def _add_logprobs(found: VerifiedRows, logits: Tensor, rows: Sequence[RowToVerify]) -> None:
    """Of the tokens that `found` gives rows which ask for that."""
    logits_rows: list[int] = []
    token_ids: list[int] = []
    num_top: list[int] = []
    asking: list[tuple[int, int]] = []  # rows, and how many tokens each got
    start = 0
    for place, row in enumerate(rows):
        top = row.state.params.logprobs
        if top is not None and (tokens := found.tokens_of(place, row.drafted)):
            logits_rows += range(start, start + len(tokens))
            token_ids += tokens
            num_top += [top] * len(tokens)
            asking.append((place, len(tokens)))
        start += len(row.drafted) + 1
    if not token_ids:
        return
    records = iter(token_logprobs(logits[logits_rows], token_ids, num_top))
    for place, count in asking:
        found.logprobs[place] = list(islice(records, count))
