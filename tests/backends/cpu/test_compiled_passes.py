"""Compiled passes say what torch's own say, and neither read nor write what is not theirs."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.backends.cpu import passes as passes_module
from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cpu.parts import CpuParts
from specserve.backends.cpu.passes import CompiledPasses
from specserve.backends.torch.chain_passes import TorchChainPasses
from specserve.backends.torch.linear import PlainLinear
from specserve.drafters.branch_attention import Entering
from specserve.drafters.context import torch_context
from specserve.models.loader import load_with
from specserve.models.parallel import TensorParallel
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint

pytest.importorskip("numba")

LENGTHS = {0: 20, 1: 33, 2: 1, 3: 16}  # chains of two rows may be equally long all the same
CHAINS = [
    ([0], [20]),
    ([0, 0, 0], [20, 7, 20]),
    ([2, 1, 0], [1, 33, 5]),
    ([0, 1, 1, 0, 3], [16, 16, 16, 16, 16]),
    ([1, 0, 1, 3, 1, 2], [33, 20, 12, 16, 33, 1]),
]
NUM_PASSES = 5


@pytest.fixture(scope="module", params=[QWEN3, LLAMA], ids=["qwen3", "llama"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return load(write_checkpoint(folder, request.param))


def passes_of(kind, model):
    """Over rows of `LENGTHS` with entries of random tokens, the same each time."""
    if kind is CompiledPasses:
        passes = CompiledPasses(model, num_tokens=512, longest=NUM_PASSES)
    else:
        spec = model.config
        context = torch_context(spec, 512, dtype=torch.float32, device=torch.device("cpu"))
        passes = TorchChainPasses(model, context)
    rows, counts = list(LENGTHS), list(LENGTHS.values())
    passes.context.rows.append(rows, [0] * len(rows), counts)
    tokens = random_tokens(model, sum(counts), seed=1).tolist()
    passes.enter(Entering(rows, [0] * len(rows), counts, tokens))
    return passes


def random_tokens(model, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (count,), generator=generator)


@torch.inference_mode()
def hidden_of(kind, model, rows, lengths, entering=None, passes=None):
    """Of every pass, and the context that was drafted behind."""
    passes = passes or passes_of(kind, model)
    if entering is not None:
        passes.context.rows.append(entering.rows, entering.starts, entering.counts)
    passes.plan(rows, lengths, NUM_PASSES, entering)
    found = [
        passes.run(random_tokens(model, len(rows), seed)).clone() for seed in range(NUM_PASSES)
    ]
    return torch.stack(found), passes.context


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_chains_are_those_of_torch(model, rows, lengths):
    expected, _ = hidden_of(TorchChainPasses, model, rows, lengths)
    found, _ = hidden_of(CompiledPasses, model, rows, lengths)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("rows", "lengths"), CHAINS)
def test_tokens_that_enter_are_seen_and_stay(model, rows, lengths):
    """By chains behind them; row 3 gets a new page, and has no chain in most cases."""
    entering = Entering([0, 3], [20, 16], [4, 2], [3, 1, 4, 1, 5, 9])
    more = {0: 3, 3: 2}
    lengths = [length + more.get(row, 0) for row, length in zip(rows, lengths, strict=True)]
    expected, theirs = hidden_of(TorchChainPasses, model, rows, lengths, entering)
    found, ours = hidden_of(CompiledPasses, model, rows, lengths, entering)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    for layer in range(model.config.num_layers):
        for row in LENGTHS:
            for mine, other in zip(ours.read(row, layer), theirs.read(row, layer), strict=True):
                torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-4)


def test_nothing_is_read_behind_a_prefix_nor_of_another_row(model):
    rows, lengths = [0, 0, 2], [7, 12, 1]
    expected, _ = hidden_of(CompiledPasses, model, rows, lengths)
    passes = passes_of(CompiledPasses, model)
    cache = passes.context.cache
    for row, end in ((0, 12), (1, 0), (2, 1), (3, 0)):
        table = passes.context.rows.table(row)
        slots = (table[:, None] * 16 + np.arange(16)).ravel()[end:]
        nothing = torch.full((len(slots), 1, 1, 1), torch.nan)
        shape = (len(slots), cache.num_layers, cache.num_kv_heads, cache.head_dim)
        cache.write_layers(slots, nothing.expand(shape), nothing.expand(shape))
    found, _ = hidden_of(CompiledPasses, model, rows, lengths, passes=passes)
    assert torch.equal(found, expected)


def test_a_chain_is_the_same_in_any_company(model):
    rows, lengths = CHAINS[-1]
    together, _ = hidden_of(CompiledPasses, model, rows, lengths)
    alone, _ = hidden_of(CompiledPasses, model, rows[:1], lengths[:1])
    assert torch.equal(together[0, :1], alone[0])


@pytest.mark.parametrize("width", [17, 33, 100])
def test_gates_end_where_panels_do_not(tmp_path, width):
    odd = load(write_checkpoint(tmp_path, QWEN3, intermediate_size=width))
    rows, lengths = CHAINS[-1]
    expected, _ = hidden_of(TorchChainPasses, odd, rows, lengths)
    found, _ = hidden_of(CompiledPasses, odd, rows, lengths)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_weights_of_several_storages(tmp_path):
    """Queries too large for float16 and not exact in bfloat16 stay whole; others are halved."""
    folder = write_checkpoint(tmp_path, LLAMA)
    tensors = load_file(folder / "model.safetensors")
    for name, x in tensors.items():
        if "v_proj" in name:
            x[0, 0] = 1e5
        elif "o_proj" in name or x.dim() == 1:
            tensors[name] = x.bfloat16().float()
    save_file(tensors, folder / "model.safetensors")
    parts = CpuParts(deterministic=False, half_weights=True)
    mixed = load_with(parts, folder, TensorParallel())
    layer = mixed.layers[1]
    products = layer.qkv, layer.o_proj.linear, layer.gate_up
    dtypes = [product.weight.dtype for product in products]
    assert dtypes == [torch.float32, torch.bfloat16, torch.float16]
    rows, lengths = CHAINS[-1]
    expected, _ = hidden_of(TorchChainPasses, mixed, rows, lengths)
    found, _ = hidden_of(CompiledPasses, mixed, rows, lengths)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def test_only_whole_models_of_compiled_products_suit(model, tmp_path, monkeypatch):
    def kind_of(model):
        return type(CpuBackend(torch.device("cpu")).chain_passes(model, num_tokens=64, longest=4))

    assert kind_of(model) is CompiledPasses
    with monkeypatch.context() as patch:
        patch.setattr(model, "parallel", mock.Mock(size=2))
        assert kind_of(model) is TorchChainPasses
    other = load(write_checkpoint(tmp_path, QWEN3))
    first, second = other.layers
    other.layers = (first, replace(second, gate_up=PlainLinear(torch.zeros(128, 32))))
    assert kind_of(other) is TorchChainPasses
    with pytest.raises(TypeError, match="PlainLinear is not compiled"):
        CompiledPasses(other, num_tokens=16, longest=1)


@pytest.mark.parametrize("token_id", [-1, 64])
def test_a_token_beyond_the_vocabulary_is_refused(model, token_id):
    passes = passes_of(CompiledPasses, model)
    passes.plan([0], [20], NUM_PASSES, None)
    with pytest.raises(IndexError, match=r"is not there|out of bounds"):
        passes.run(torch.tensor([token_id]))


def test_chains_may_grow_past_the_last_position(tmp_path):
    """Such drafts are never used; what stands before them is as ever."""
    short = load(write_checkpoint(tmp_path, QWEN3), num_positions=35)
    expected, _ = hidden_of(TorchChainPasses, short, [1, 3], [33, 16])
    found, _ = hidden_of(CompiledPasses, short, [1, 3], [33, 16])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("rows", "lengths", "num_passes", "why"),
    [
        ([0, 2], [20, 33], NUM_PASSES, "behind 33 positions"),
        ([0], [20], 17, "17 tokens behind a row, there is room for 16"),
        ([0] * 290, [20] * 290, 2, "290 chains, there is room for 289"),
    ],
)
def test_what_there_is_no_room_for_is_refused(model, rows, lengths, num_passes, why):
    passes = passes_of(CompiledPasses, model)
    with pytest.raises(ValueError, match=why):
        passes.plan(rows, lengths, num_passes, None)


def test_chains_of_more_than_a_page(model):
    passes = [passes_of(TorchChainPasses, model), CompiledPasses(model, num_tokens=512, longest=40)]
    rows, counts = list(LENGTHS), list(LENGTHS.values())
    passes[1].context.rows.append(rows, [0] * len(rows), counts)
    tokens = random_tokens(model, sum(counts), seed=1).tolist()
    passes[1].enter(Entering(rows, [0] * len(rows), counts, tokens))
    found = []
    for each in passes:
        each.plan([0, 1, 0], [20, 33, 3], 40, None)
        found.append(
            torch.stack([each.run(random_tokens(model, 3, seed)).clone() for seed in range(40)])
        )
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-3)


def test_many_chains_at_once(model):
    rows = [place % 4 for place in range(280)]
    lengths = [LENGTHS[row] - place % 3 * (row != 2) for place, row in enumerate(rows)]
    entering = Entering([0, 3], [20, 16], [4, 2], [3, 1, 4, 1, 5, 9])
    lengths = [length + (row == 0) * 4 for row, length in zip(rows, lengths, strict=True)]
    expected, _ = hidden_of(TorchChainPasses, model, rows, lengths, entering)
    found, _ = hidden_of(CompiledPasses, model, rows, lengths, entering)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_more_blocks_than_one_forward_makes(model, monkeypatch):
    monkeypatch.setattr(passes_module, "_MOST_BLOCKS", 7)
    small = passes_of(CompiledPasses, model)
    monkeypatch.undo()
    large = passes_of(CompiledPasses, model)
    rows = [place % 4 for place in range(30)]
    lengths = [LENGTHS[row] for row in rows]
    gaps = [[5] * (place % 3) for place in range(30)]
    ids = random_tokens(model, 90, seed=2).view(30, 3)
    found, expected = (each.blocks(rows, lengths, ids, None, gaps) for each in (small, large))
    torch.testing.assert_close(found, expected)


def test_memory_for_drafts_is_taken_when_there_are_some(model):
    before = resident_bytes()
    passes = CompiledPasses(model, num_tokens=2_000_000, longest=64)
    held = 2 * passes.context.cache.values.nbytes
    assert held > 500e6
    assert resident_bytes() - before < held / 10


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_drafting_writes_to_no_row(model):
    passes = passes_of(CompiledPasses, model)
    before = [x.clone() for row in LENGTHS for x in passes.context.read(row, 1)]
    for num_chains in (1, 60):
        passes.plan([0] * num_chains, [20] * num_chains, NUM_PASSES, None)
        for seed in range(NUM_PASSES):
            passes.run(random_tokens(model, num_chains, seed))
    after = [x for row in LENGTHS for x in passes.context.read(row, 1)]
    assert all(map(torch.equal, before, after))


def test_a_numba_that_cannot_be_imported_is_none(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('needs another numpy')")
    code = "from specserve.backends.cpu.noise import register;"
    code += "from specserve.backends.cpu import compiled;"
    code += "print(register(), compiled.WHY_NOT)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split(maxsplit=1) == ["False", "needs another numpy\n"]
