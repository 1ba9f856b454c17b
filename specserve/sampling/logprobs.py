"""Log probabilities for the client: of the chosen token, and of the likeliest ones.

They describe the model, not the sampling: taken from the raw target logits, before penalties,
bias, suppression, temperature and truncation. Only rows that ask come here. Like sampling, the
numbers of a row do not depend on the rows around it. Knows no requests.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specserve.sampling.truncation import fixed_point_mass, mass_bits
from specserve.types import Logprobs

# Elements of the temporaries, which are several times wider than the logits of a long prompt.
_MAX_ELEMENTS = 1 << 22


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[Logprobs]:
    """One record a row: `logits` float32 [N, V], a token and a number of alternatives for each row.

    Rank is one more than the number of likelier tokens, so tokens that tie share it. Alternatives
    come likeliest first, ties by lowest id. Values are natural logarithms. What has no probability,
    as entries that only pad the vocabulary, is no alternative: a row may list fewer than it asks.
    """
    records: list[Logprobs] = []
    step = max(1, _MAX_ELEMENTS // logits.shape[1])
    for start in range(0, len(token_ids), step):
        part = slice(start, start + step)
        records += _records(logits[part], token_ids[part], num_top[part])
    return records


class LogprobColumns(NamedTuple):
    """Of N rows, the chosen token first and K of the likeliest ones behind it."""

    ids: Tensor  # int64 [N, 1 + K]
    logprobs: Tensor  # float64 [N, 1 + K]
    ranks: Tensor  # int64 [N], of the chosen token
    num_possible: Tensor  # int64 [N], tokens that have a probability


def logprob_columns(logits: Tensor, chosen: Tensor, num_listed: int) -> LogprobColumns:
    """Of `logits` float32 [N, V] and one token a row, int64 [N]; waits for nothing."""
    ids = torch.cat((chosen.unsqueeze(1), _likeliest(logits, num_listed)), dim=1)
    values = logits.gather(1, ids)
    return LogprobColumns(
        ids=ids,
        logprobs=values.double() - _log_normaliser(logits),
        ranks=1 + (logits > values[:, :1]).sum(dim=1),
        num_possible=(logits > -math.inf).sum(dim=1),
    )


def logprob_records(columns: LogprobColumns, num_top: Sequence[int]) -> list[Logprobs]:
    """One a row, with so many alternatives, or fewer where fewer are possible."""
    ids, logprobs, ranks, num_possible = (column.tolist() for column in columns)
    return [
        Logprobs(
            token_id=own_ids[0],
            logprob=values[0],
            rank=rank,
            top_ids=own_ids[1 : 1 + count],
            top_logprobs=values[1 : 1 + count],
        )
        for own_ids, values, rank, count in zip(
            ids, logprobs, ranks, map(min, num_top, num_possible), strict=True
        )
    ]


def _records(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[Logprobs]:
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    num_listed = min(max(num_top), logits.shape[1])
    return logprob_records(logprob_columns(logits, chosen, num_listed), num_top)


def _log_normaliser(logits: Tensor) -> Tensor:
    """log of the sum of exp, float64 [N, 1]; summed in integers, exact in any order."""
    maximum = logits.amax(dim=1, keepdim=True)
    mass = fixed_point_mass((logits - maximum).exp_(), logits.shape[1]).sum(dim=1, keepdim=True)
    return maximum.double() + (mass.double() * 2.0 ** -mass_bits(logits.shape[1])).log()


def _likeliest(logits: Tensor, num_listed: int) -> Tensor:
    """The ids of the largest logits, int64 [N, num_listed], in the order of `token_logprobs`."""
    if num_listed == 0:
        return torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
    # topk leaves the order of ties open, so it gets keys without ties: the float's bits made to
    # ascend with its value, above the descending id. Adding zero turns -0.0 into 0.0.
    bits = (logits + 0.0).view(torch.int32).to(torch.int64)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    descending_ids = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    keys = (ascending << 32) | descending_ids
    return logits.shape[1] - 1 - (keys.topk(num_listed, dim=1).values & 0xFFFFFFFF)
