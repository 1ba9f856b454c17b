"""Attention as flashinfer's documents define it of its tables, row by row and key by key.

The definition that builders of tables and the stand-in for its wrappers are held against. Of pages
it is told by block, heads first within one ("HND"), as its wrappers are.
"""

import math

import torch
from torch import Tensor

from specserve.backends.cuda.page_tables import PageTables


def attend(
    q: Tensor, keys: Tensor, values: Tensor, tables: PageTables, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Results [Q, heads, head_dim] and base-2 logarithms of the sums of weights [Q, heads].

    q [Q, heads, head_dim]; keys and values [blocks, kv_heads, page_size, head_dim]. A query without
    keys finds zeros, and its logarithm is -inf. Queries of no row find NaN.
    """
    out = torch.full_like(q, torch.nan)
    sums = torch.full(q.shape[:2], torch.nan)
    queries, pages = tables.qo_indptr.tolist(), tables.kv_indptr.tolist()
    for row, last in enumerate(tables.last_page_len.tolist()):
        of_row = slice(queries[row], queries[row + 1])
        if of_row.start == of_row.stop:
            continue
        ids = torch.from_numpy(tables.kv_indices[pages[row] : pages[row + 1]]).long()
        num_keys = (len(ids) - 1) * tables.page_size + last if len(ids) else 0
        own = (x[ids].transpose(0, 1).flatten(1, 2)[:, :num_keys] for x in (keys, values))
        out[of_row], sums[of_row] = _attend_row(q[of_row], *own, causal=causal, scale=scale)
    return out, sums


def _attend_row(
    q: Tensor, keys: Tensor, values: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """q [M, heads, head_dim], keys and values [kv_heads, K, head_dim]."""
    count, num_keys = len(q), keys.shape[1]
    if not num_keys:
        return torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    ratio = q.shape[1] // keys.shape[0]
    keys, values = (x.repeat_interleave(ratio, dim=0) for x in (keys.float(), values.float()))
    scores = torch.einsum("mhd,hkd->hmk", q.float(), keys) * scale
    if causal:  # aligned at the end
        hidden = torch.ones(count, num_keys, dtype=torch.bool).triu(num_keys - count + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    sums = torch.logsumexp(scores, dim=2) / math.log(2)
    found = torch.einsum("hmk,hkd->mhd", torch.softmax(scores, dim=2), values)
    return found.to(q.dtype), sums.T


def merged(found: Tensor, sums: Tensor, other: Tensor, other_sums: Tensor) -> tuple[Tensor, Tensor]:
    """Of all keys, by what two sets of them brought: results and sums."""
    most = torch.maximum(sums, other_sums)
    weight, other_weight = torch.exp2(sums - most), torch.exp2(other_sums - most)
    total = weight + other_weight
    mean = found.float() * weight[..., None] + other.float() * other_weight[..., None]
    return (mean / total[..., None]).to(found.dtype), most + torch.log2(total)
