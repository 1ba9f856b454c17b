"""Tokens of a batch as one graph, on a device: by itself it is dozens of small kernels.

See `specserve.sampling.sampling` for the definition, and `specserve.backends.cuda.graphs`.
"""

import functools

from torch import Tensor

from specserve.backends.cuda.graphs import CapturedRows, padded
from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.sampling import sample

MOST_CAPTURED = 1 << 22  # logits, whose kernels take no longer than beginning them does


def padded_top_k(max_top_k: int) -> int:
    """Of a graph: few values that are no less, and 0 where nobody asks for any."""
    return padded(max_top_k) if max_top_k else 0


def captured_sample(logits: Tensor, batch: SamplingBatch) -> Tensor | None:
    """The tokens int64 [R] of rows that all draw and that nobody edits; None where none is kept."""
    columns = logits, batch.temperatures, batch.keys.T
    if batch.truncation is None:
        return _captured_samples()(*columns)
    cuts = batch.truncation.spread(batch.num_rows)
    return _captured_samples()(
        *columns,
        cuts.top_k,
        cuts.top_p,
        cuts.min_p,
        max_top_k=padded_top_k(cuts.max_top_k),
        any_top_p=cuts.any_top_p,
    )


@functools.cache
def _captured_samples() -> CapturedRows:
    return CapturedRows(_draw, MOST_CAPTURED)


def _draw(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    *cuts: Tensor,
    max_top_k: int = 0,
    any_top_p: int = False,
) -> Tensor:
    """Logits [R, V], temperatures [R], keys [R, 3]; top_k, top_p and min_p [R] or none of them."""
    truncation = None
    if cuts:
        top_k, top_p, min_p = cuts
        truncation = Truncation(
            places=temperatures,  # all rows
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            max_top_k=max_top_k,
            any_top_p=bool(any_top_p),
            any_min_p=True,
            may_wait=False,
        )
    batch = SamplingBatch(
        num_rows=len(logits),
        greedy_rows=None,
        random_rows=temperatures,  # all of them
        temperatures=temperatures,
        keys=keys.T,
        edits=None,
        truncation=truncation,
    )
    return sample(logits, batch).token_ids
