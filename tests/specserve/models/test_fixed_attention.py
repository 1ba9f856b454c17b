"""Products of one shape: the attention of `TorchAttention`, with bits that no company changes."""

import pytest
import torch

from specserve.backends.torch import fixed_attention
from specserve.backends.torch.attention import TorchAttention
from specserve.backends.torch.fixed_attention import FixedAttention
from specserve.errors import Unsupported
from specserve.models.dealing import deal_heads
from tests.specserve.models.attended import (
    LENGTHS,
    NUM_HEADS,
    NUM_KV_HEADS,
    Rows,
    companies,
    differing,
)

CPU = torch.device("cpu")


def fixed(cache, num_heads):
    return FixedAttention(cache, num_heads=num_heads)


def plain(cache, num_heads):
    return TorchAttention(cache, num_heads=num_heads, deterministic=False)


@pytest.mark.parametrize(
    "block_size", [24, *(pytest.param(n, marks=pytest.mark.slow) for n in (16, 1, 128, 300))]
)
def test_it_attends_as_the_other_does(block_size):
    ours, theirs = (Rows(CPU, make, block_size=block_size) for make in (fixed, plain))
    for pieces in companies()[:: 1 if block_size == 16 else 5]:
        for found, expected in zip(ours.attend(pieces), theirs.attend(pieces), strict=True):
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_takes_other_dtypes(dtype):
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6  # of the other, whose scores are float32
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    ours, theirs = (Rows(CPU, make, dtype=dtype).attend(whole) for make in (fixed, plain))
    for found, expected in zip(ours, theirs, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_bits_do_not_depend_on_the_company():
    assert differing(Rows(CPU, fixed)) == []


def test_bits_do_not_depend_on_the_number_of_ranks():
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    expected = torch.cat(Rows(CPU, fixed).attend(whole))
    for num_ranks in range(2, NUM_HEADS + 1):
        parts = [
            torch.cat(Rows(CPU, fixed, heads=heads).attend(whole))
            for heads in deal_heads(NUM_HEADS, NUM_KV_HEADS, num_ranks)
        ]
        assert torch.equal(torch.cat(parts, dim=1), expected)


def test_every_product_has_one_shape(monkeypatch):
    shapes = set()
    bmm = torch.bmm

    def noted(a, b, *, out):
        shapes.add((a.shape, a.stride(), b.shape, b.stride(), out.shape, out.stride()))
        return bmm(a, b, out=out)

    monkeypatch.setattr(fixed_attention.torch, "bmm", noted)
    fixed_attention._check_rows.cache_clear()  # what it tries are these products, too
    for num_ranks in (1, 2, 3, 4, 6):
        rows = Rows(CPU, fixed, heads=deal_heads(NUM_HEADS, NUM_KV_HEADS, num_ranks)[-1])
        for pieces in companies():
            rows.attend(pieces)
    assert len(shapes) == 2  # of scores, and of values


def test_nothing_beyond_a_context_is_read():
    rows = Rows(CPU, fixed)
    expected = rows.attend([(2, 10, 20)])[0]
    own = set(rows.slots(2, 20))
    others = [slot for slot in range(rows.cache.keys.shape[2]) if slot not in own]
    rows.cache.keys[:, :, others] = torch.nan
    rows.cache.values[:, :, others] = torch.nan
    assert torch.equal(rows.attend([(2, 10, 20)])[0], expected)


def test_large_scores_do_not_overflow():
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    ours, theirs = (Rows(CPU, make, query_scale=60.0).attend(whole) for make in (fixed, plain))
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


def test_sixteen_bits_are_only_kept_and_never_computed_with():
    last = [(5, 500, 517)]
    halves = Rows(CPU, fixed, dtype=torch.bfloat16)
    exact = Rows(CPU, fixed, rounded_to=torch.bfloat16).attend(last)[0]
    assert torch.equal(halves.attend(last)[0], exact.bfloat16())


def test_where_equal_rows_differ_it_is_refused(monkeypatch):
    fixed_attention._check_rows.cache_clear()
    multiply = fixed_attention._multiply

    def leaking(a, b):
        found = multiply(a, b)
        found[:, 1::2] *= 1 + 1e-6
        return found

    monkeypatch.setattr(fixed_attention, "_multiply", leaking)
    with pytest.raises(Unsupported, match=r"engine\.deterministic: .* heads of 32 in float32"):
        Rows(CPU, fixed)
    fixed_attention._check_rows.cache_clear()
