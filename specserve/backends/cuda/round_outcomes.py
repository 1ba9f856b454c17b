"""What a captured round finds, in one tensor, so that one read brings it to the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specserve.backends.base import VerifiedRows
from specserve.backends.cuda.packed import Place, laid_over
from specserve.backends.cuda.round_shape import RoundShape
from specserve.sampling.logprobs import LogprobColumns, logprob_records
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import accepted_prefix
from specserve.sampling.verification.verify import VerificationOutcomes


def packed_outcomes(
    drawn: Tensor | None, tested: VerificationOutcomes | None, listed: LogprobColumns | None
) -> Tensor:
    """int64, by `_places`: tokens [N] of rows by equality, outcomes [B] of others, log probs [L].

    Each is None where a round has no such rows.
    """
    parts: list[Tensor] = [] if drawn is None else [drawn]
    if tested is not None:
        flags = tested.broken_probs.long(), tested.spoiled_rows.long()
        parts += (tested.num_accepted, tested.next_tokens, *flags)
    if listed is not None:
        values = listed.logprobs.view(torch.int64).flatten()
        parts += (listed.ids.flatten(), values, listed.ranks, listed.num_possible)
    return torch.cat(parts)


def _places(shape: RoundShape) -> list[Place]:
    is_by_equality, is_tested = shape.any_greedy or shape.any_drawn, shape.num_kept > 0
    listed = (shape.num_listed, 1 + shape.num_top)
    return [
        Place((shape.num_logits if is_by_equality else 0,)),
        Place((4, shape.num_rows if is_tested else 0)),
        *(Place(listed), Place(listed, torch.float64)),
        *(Place(listed[:1]), Place(listed[:1])),
    ]


def read_outcomes(
    found: Tensor, shape: RoundShape, rows: Sequence[RowToVerify], by_ratio: Sequence[bool]
) -> VerifiedRows:
    """Waits for the device: `packed_outcomes` of these rows, by their numbers of that shape."""
    numbers = found.cpu()
    all_drawn, all_tested, *listed = laid_over(numbers, _places(shape))
    drawn, tested = all_drawn.tolist(), all_tested.T.tolist()
    outcomes = VerifiedRows.nothing(len(rows))
    start = 0
    for place, (row, is_tested) in enumerate(zip(rows, by_ratio, strict=True)):
        end = start + len(row.drafted) + 1
        if is_tested:
            num_accepted, next_token, is_broken, is_spoiled = tested[place]
            outcomes.has_broken_probs[place] = bool(is_broken)
        else:
            num_accepted, next_token, is_spoiled = accepted_prefix(row.drafted, drawn[start:end])
        outcomes.num_accepted[place], outcomes.next_tokens[place] = num_accepted, next_token
        outcomes.has_bad_logits[place] = bool(is_spoiled)
        start = end
    if shape.num_listed:
        ids, logprobs, ranks, num_possible = listed
        _add_logprobs(outcomes, LogprobColumns(ids, logprobs, ranks, num_possible), rows)
    return outcomes


def _add_logprobs(
    outcomes: VerifiedRows, columns: LogprobColumns, rows: Sequence[RowToVerify]
) -> None:
    """Of the tokens that rows got, as far as they ask; every row of theirs is in `columns`."""
    start = 0
    for place, row in enumerate(rows):
        num_top = row.state.params.logprobs
        if num_top is None:
            continue
        count = len(outcomes.tokens_of(place, row.drafted))
        if count:
            own = LogprobColumns(*(column[start : start + count] for column in columns))
            outcomes.logprobs[place] = logprob_records(own, [num_top] * count)
        start += len(row.drafted) + 1
