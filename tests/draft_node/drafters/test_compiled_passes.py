"""Compiled passes say what torch's own say, and neither read nor write what is not theirs."""

from unittest import mock

import numpy as np
import pytest
import torch

from draft_node import chain_kernels
from draft_node.branch_attention import Entering
from draft_node.compiled import exp, largest
from draft_node.context import Context
from draft_node.drafters import compiled_passes
from draft_node.drafters.chain_passes import TorchPasses
from draft_node.drafters.compiled_passes import CompiledPasses
from draft_node.drafters.language_model import passes_of
from specserve.model.attention import TorchAttention
from tests.specserve.model.checkpoints import LLAMA, QWEN3, load, write_checkpoint

pytest.importorskip("numba")

LENGTHS = {0: 20, 1: 33, 2: 1, 3: 16}
CHAINS = [
    ([0], [20]),
    ([0, 0, 0], [20, 7, 20]),
    ([2, 1, 0], [1, 33, 5]),
    ([1, 0, 1, 3, 1, 2], [33, 20, 12, 16, 33, 1]),
]
NUM_PASSES = 5


@pytest.fixture(scope="module", params=[QWEN3, LLAMA], ids=["qwen3", "llama"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return load(write_checkpoint(folder, request.param))


def context_of(model):
    """Rows of `LENGTHS` with entries of random tokens, the same each time."""
    spec = model.config
    context = Context(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        num_tokens=512,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    rows, counts = list(LENGTHS), list(LENGTHS.values())
    context.rows.append(rows, [0] * len(rows), counts)
    attention = TorchAttention(context.cache, num_heads=spec.num_heads, deterministic=False)
    attention.plan(context.causal_batch(rows, counts))
    tokens = random_tokens(model, sum(counts), seed=1)
    model.forward(tokens, torch.cat([torch.arange(count) for count in counts]), attention)
    return context


def random_tokens(model, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (count,), generator=generator)


@torch.inference_mode()
def hidden_of(kind, model, rows, lengths, entering=None, context=None):
    """Of every pass, and the context that was drafted behind."""
    context = context or context_of(model)
    if entering is not None:
        context.rows.append(entering.rows, entering.starts, entering.counts)
    passes = kind(model, context)
    passes.plan(rows, lengths, NUM_PASSES, entering)
    found = [
        passes.run(random_tokens(model, len(rows), seed)).clone() for seed in range(NUM_PASSES)
    ]
    return torch.stack(found), context


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_chains_are_those_of_torch(model, rows, lengths):
    expected, _ = hidden_of(TorchPasses, model, rows, lengths)
    found, _ = hidden_of(CompiledPasses, model, rows, lengths)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_tokens_that_enter_are_seen_and_stay(model, rows, lengths):
    """By chains behind them; row 3 gets a new page, and has no chain in most cases."""
    entering = Entering([0, 3], [20, 16], [4, 2], [3, 1, 4, 1, 5, 9])
    more = {0: 3, 3: 2}
    lengths = [length + more.get(row, 0) for row, length in zip(rows, lengths, strict=True)]
    expected, theirs = hidden_of(TorchPasses, model, rows, lengths, entering)
    found, ours = hidden_of(CompiledPasses, model, rows, lengths, entering)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    for layer in range(model.config.num_layers):
        for row in LENGTHS:
            for mine, other in zip(ours.read(row, layer), theirs.read(row, layer), strict=True):
                torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4)


def test_nothing_is_read_behind_a_prefix_nor_of_another_row(model):
    rows, lengths = [0, 0, 2], [7, 12, 1]
    expected, _ = hidden_of(CompiledPasses, model, rows, lengths)
    context = context_of(model)
    for row, end in ((0, 12), (1, 0), (2, 1), (3, 0)):
        table = context.rows.table(row)
        slots = (table[:, None] * 16 + np.arange(16)).ravel()[end:]
        context.cache.keys[:, :, slots] = torch.nan
        context.cache.values[:, :, slots] = torch.nan
    found, _ = hidden_of(CompiledPasses, model, rows, lengths, context=context)
    assert torch.equal(found, expected)


def test_a_chain_is_the_same_in_any_company(model):
    rows, lengths = CHAINS[-1]
    together, _ = hidden_of(CompiledPasses, model, rows, lengths)
    alone, _ = hidden_of(CompiledPasses, model, rows[:1], lengths[:1])
    # Its products may differ by their number of rows; what is compiled may not.
    torch.testing.assert_close(together[0, :1], alone[0], atol=1e-5, rtol=1e-5)


def test_positions_past_the_last_one_do_not_fail(model):
    passes = CompiledPasses(model, context_of(model))
    passes._num_positions = 22  # as of a model that ends there
    passes.plan([0], [20], NUM_PASSES, None)
    for seed in range(NUM_PASSES):
        assert passes.run(random_tokens(model, 1, seed)).isfinite().all()


def test_one_compilation_serves_every_shape(model):
    """Another would be made in the middle of a round."""
    kernels = [
        getattr(chain_kernels, name)
        for name in ("normed", "add_normed", "gated", "place_heads", "gather_columns", "attend")
    ]
    CompiledPasses(model, context_of(model))
    before = [len(kernel.signatures) for kernel in kernels]
    for rows, lengths in CHAINS:
        hidden_of(CompiledPasses, model, rows, lengths)
    passes = CompiledPasses(model, context_of(model))
    passes.plan([2], [1], 1, None)  # dimensions of one element look contiguous in any order
    passes.run(random_tokens(model, 1, seed=0)[:, None].expand(-1, 2)[:, 0])
    assert [len(kernel.signatures) for kernel in kernels] == before == [1] * len(kernels)


def test_a_machine_without_the_compiler_makes_passes_by_torch(model):
    assert isinstance(passes_of(model, context_of(model)), CompiledPasses)
    with mock.patch.object(compiled_passes, "IS_AVAILABLE", False):
        assert isinstance(passes_of(model, context_of(model)), TorchPasses)


def test_exponentials_and_maxima():
    @np.vectorize
    def of(x):
        return exp(np.float32(x))

    x = np.linspace(-80, 80, 4001, dtype=np.float32)
    np.testing.assert_allclose(of(x), np.exp(x.astype(np.float64)), rtol=1e-5)
    assert exp(np.float32(0)) == 1
    assert 0 <= exp(np.float32(-1e30)) < 1e-37
    for size in (1, 7, 16, 33, 200):
        values = np.random.default_rng(size).normal(size=size).astype(np.float32) - 5
        assert largest(values) == values.max()
