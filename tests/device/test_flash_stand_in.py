"""The stand-in for flashinfer's wrappers computes what the definition of their tables says."""

import random

import pytest
import torch

from specserve.backends.cuda import flash as flash_module
from specserve.backends.cuda.flash import FixedSize, Flash
from specserve.backends.cuda.flash_shape import FlashShape
from specserve.backends.cuda.page_tables import PageTables
from tests.backends.cuda.layouts import Pool, heads_of, random_batch
from tests.backends.cuda.paged_reference import attend, merged
from tests.device.flash_stand_in import StandIn
from tests.device.pretended import DEVICE, PretendedCuda


@pytest.mark.parametrize("is_fixed", [False, True])
def test_it_attends_as_the_definition_says(
    cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch, is_fixed: bool
):
    monkeypatch.setattr(flash_module, "WORKSPACE_BYTES", 1)
    source, flash = random.Random(5), Flash(DEVICE, StandIn())
    pool = Pool.of(4, 2, 3)
    pages = pool.cache.pages(0)
    heads = heads_of(pool.cache, num_heads=6, scale=0.3)
    seen = set()
    for _ in range(25):
        batch = random_batch(source, 4)
        tables, fixed = PageTables.of_batch(batch, 4), None
        if is_fixed:
            shape = FlashShape.of(batch, 4)
            assert shape is not None
            tables = tables.padded(shape.num_rows, shape.num_tokens)
            fixed = FixedSize(shape.num_rows, torch.zeros(200, dtype=torch.int32, device=DEVICE))
        kind = source.choice(
            ["decode", "causal", "whole"] if tables.is_decode else ["causal", "whole"]
        )
        kernel = getattr(flash, kind)(heads, fixed)
        q, _, _ = pool.tokens(tables.num_queries)
        kernel.plan(tables)
        found, sums = kernel.run_with_sums(q.to(DEVICE), tuple(x.to(DEVICE) for x in pages))
        causal = kind == "causal"
        expected, expected_sums = attend(q, *pages, tables, causal=causal, scale=0.3)
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(sums.cpu(), expected_sums)
        seen.add(kind)
    assert seen == {"decode", "causal", "whole"}


def test_it_merges_as_the_definition_says(cuda: PretendedCuda):
    found, other = torch.randn(2, 5, 3, 4)
    sums, other_sums = torch.randn(2, 5, 3)
    other_sums[0] = -torch.inf  # nothing was seen there
    expected, expected_sums = merged(found, sums, other, other_sums)
    on_device = [x.to(DEVICE) for x in (found, sums, other, other_sums)]
    Flash(DEVICE, StandIn()).merge(*on_device)
    torch.testing.assert_close(on_device[0].cpu(), expected)
    torch.testing.assert_close(on_device[1].cpu(), expected_sums)
    assert torch.equal(expected[0], found[0])
