"""Penalties, bias and suppression on raw logits, the first stage of sampling.

Touches only the (row, token) pairs listed, each by itself, so no row can feel another.
"""

from torch import Tensor

from specserve.sampling.batch import LogitEdits


def apply_edits(logits: Tensor, edits: LogitEdits) -> Tensor:
    """A copy of `logits` [R, V] with the edits made; in their order:

    1. repetition penalty over prompt and output: positive logits divided by it, others multiplied;
    2. frequency penalty, times the number of times generated, then presence penalty: subtracted;
    3. `logit_bias`: added;
    4. forbidden tokens: minus infinity.
    """
    edited = logits.clone()
    dtype = logits.dtype
    if edits.penalty_rows.numel():
        where = (edits.penalty_rows, edits.penalty_ids)
        values = edited[where]
        repetition, frequency, presence = (
            of_row.to(dtype)[edits.penalty_rows]
            for of_row in (edits.repetition, edits.frequency, edits.presence)
        )
        values = (values / repetition).where(values > 0, values * repetition)
        values -= frequency * edits.counts
        values -= presence * (edits.counts > 0)
        edited[where] = values
    if edits.bias_rows.numel():
        where = (edits.bias_rows, edits.bias_ids)
        edited[where] += edits.bias_values.to(dtype)
    if edits.forbidden_rows.numel():
        edited[edits.forbidden_rows, edits.forbidden_ids] = float("-inf")
    return edited
