"""Compiled passes say what torch's own say, and neither read nor write what is not theirs."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_node import kernels
from draft_node.branch_attention import Entering
from draft_node.calibration.law_confidence import law_features
from draft_node.context import Context
from draft_node.drafters.chain_passes import TorchPasses
from draft_node.drafters.compiled_passes import CompiledPasses
from draft_node.drafters.fastest_passes import MOST_KEYS, FastestPasses, passes_of
from draft_node.kernel_trial import are_usable
from draft_node.kernels import exp, gated, largest
from specserve import compiled
from specserve.model.attention import TorchAttention
from specserve.model.linear import Kernels, PlainLinear
from specserve.model.loader import load_with
from specserve.model.parallel import TensorParallel
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
    assert torch.equal(together[0, :1], alone[0])


@pytest.mark.parametrize("width", [17, 33, 100])
def test_gates_end_where_panels_do_not(tmp_path, width):
    odd = load(write_checkpoint(tmp_path, QWEN3, intermediate_size=width))
    rows, lengths = CHAINS[-1]
    expected, _ = hidden_of(TorchPasses, odd, rows, lengths)
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
    kernels_ = Kernels(
        dtype=torch.float32, device=torch.device("cpu"), deterministic=False, half_weights=True
    )
    mixed = load_with(kernels_, folder, TensorParallel())
    layer = mixed.layers[1]
    products = layer.qkv, layer.o_proj.linear, layer.gate_up
    dtypes = [product.weight.dtype for product in products]
    assert dtypes == [torch.float32, torch.bfloat16, torch.float16]
    rows, lengths = CHAINS[-1]
    expected, _ = hidden_of(TorchPasses, mixed, rows, lengths)
    found, _ = hidden_of(CompiledPasses, mixed, rows, lengths)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-3)


def test_only_whole_models_of_compiled_products_suit(model, tmp_path, monkeypatch):
    assert CompiledPasses.suit(model)
    with monkeypatch.context() as patch:
        patch.setattr(model, "parallel", mock.Mock(size=2))
        assert not CompiledPasses.suit(model)
    other = load(write_checkpoint(tmp_path, QWEN3))
    first, second = other.layers
    other.layers = (first, replace(second, gate_up=PlainLinear(torch.zeros(128, 32))))
    assert not CompiledPasses.suit(other)
    with pytest.raises(TypeError, match="PlainLinear is not compiled"):
        CompiledPasses(other, context_of(other))


@pytest.mark.parametrize("token_id", [-1, 64])
def test_a_token_beyond_the_vocabulary_is_refused(model, token_id):
    passes = CompiledPasses(model, context_of(model))
    passes.plan([0], [20], NUM_PASSES, None)
    with pytest.raises(IndexError, match="beyond the vocabulary"):
        passes.run(torch.tensor([token_id]))


def test_positions_past_the_last_one_are_the_last_one(model):
    found, expected = [], []
    for end, seen in ((22, found), (128, expected)):
        passes = CompiledPasses(model, context_of(model))
        passes._num_positions = end  # as of a model that ends there
        passes.plan([0], [20], NUM_PASSES, None)
        seen += [passes._chains[kernels.POSITION].item()]
        for seed in range(NUM_PASSES):
            passes.run(random_tokens(model, 1, seed))
            seen += [passes._chains[kernels.POSITION].item()]
    assert expected == [20, 21, 22, 23, 24, 25]
    assert found == [20, 21, 21, 21, 21, 21]


def test_what_enters_past_the_last_position_leaves_no_array(model):
    passes = CompiledPasses(model, context := context_of(model))
    passes._num_positions = 18
    context.rows.append([3], [16], [4])
    passes.plan([3], [20], NUM_PASSES, Entering([3], [16], [4], [3, 1, 4, 1]))
    assert passes._first[kernels.POSITION].tolist() == [16, 17, 17, 17, 17]


def test_a_chain_behind_more_than_there_is_is_refused(model):
    passes = CompiledPasses(model, context_of(model))
    with pytest.raises(ValueError, match="behind"):
        passes.plan([0, 2], [20, 33], NUM_PASSES, None)


PACKAGES = ("draft_node", "specserve", "target_node")
COMPILER, CALLS = "specserve/compiled.py", "specserve/address_call.py"
IMPORTS_COMPILER = re.compile(
    r"^[ \t]*(?:from|import) specserve(?:\.compiled| import compiled)\b", re.M
)
COMPILED = ("law_features", "make_pass")


def test_one_compilation_serves_every_shape(model):
    """Another would be made in the middle of a round."""
    assert are_usable()
    compiled = [getattr(kernels, name) for name in COMPILED]
    before = [len(kernel.signatures) for kernel in compiled]
    for rows, lengths in CHAINS:
        hidden_of(CompiledPasses, model, rows, lengths)
    passes = CompiledPasses(model, context_of(model))
    passes.plan([2], [1], 1, None)  # dimensions of one element look contiguous in any order
    passes.run(random_tokens(model, 1, seed=0)[:, None].expand(-1, 2)[:, 0])
    for shape in ((1, 1, 1), (3, 2, 40), (1, 3, 7)):
        law_features(torch.randn(shape))
        law_features(torch.randn(shape).transpose(0, 1))
        law_features(torch.randn(shape)[..., :1].expand(shape))
    assert [len(kernel.signatures) for kernel in compiled] == before == [1] * len(compiled)


def test_what_is_compiled_needs_no_other_file():
    """numba keeps what it compiled as long as the file of a function is the same, and no longer."""
    root = Path(kernels.__file__).parents[1]
    sources = [p for name in PACKAGES for p in (root / name).rglob("*.py")]
    texts = {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in sources}
    assert len(texts) > 100
    assert [name for name, text in texts.items() if "import numba" in text] == [COMPILER]
    importers = {name for name, text in texts.items() if IMPORTS_COMPILER.search(text)}
    # They call what is compiled elsewhere, or are compiled with what names all of their sources.
    importers -= {"draft_node/kernel_trial.py", "specserve/model/forward_trial.py", CALLS}
    importers -= {"specserve/model/layer_kernels.py", "specserve/model/forward_record.py"}
    assert importers == {"draft_node/kernels.py", "specserve/noise_kernel.py"}
    allowed = {"draft_node/kernels.py": ["from specserve.address_call import call"]}
    for name in importers:
        ours = re.findall(
            r"^[ \t]*(?:from|import) (?:specserve|draft_node|target_node)\b.*", texts[name], re.M
        )
        assert ours == ["from specserve import compiled", *allowed.get(name, [])]
    read = re.findall(
        r"^(?:from|import) specserve.*", texts["specserve/model/layer_kernels.py"], re.M
    )
    assert [line.partition(" import")[0] for line in read] == [
        "from specserve",
        "from specserve.address_call",
        "from specserve.model.forward_job",
    ]  # the sources that `forward_record.entry` names


@pytest.mark.parametrize(
    ("num_threads", "num_chains", "is_few"), [(1, 64, True), (2, 16, True), (2, 17, False)]
)
def test_many_chains_are_for_several_threads(num_threads, num_chains, is_few):
    few, many = mock.Mock(), mock.Mock()
    torch.set_num_threads(num_threads)
    FastestPasses(few, many).plan([0] * num_chains, [9] * num_chains, 3, None)
    assert (few.plan.called, many.plan.called) == (is_few, not is_few)


def test_many_keys_are_for_torch():
    few, many = mock.Mock(), mock.Mock()
    passes = FastestPasses(few, many)
    passes.plan([0, 0], [MOST_KEYS // 2] * 2, 3, None)
    assert passes.run(torch.ones(2)) is few.run.return_value
    passes.plan([0, 0], [MOST_KEYS // 2 + 1] * 2, 3, None)
    assert passes.run(torch.ones(2)) is many.run.return_value
    few.plan.assert_called_once()
    many.plan.assert_called_once_with([0, 0], [MOST_KEYS // 2 + 1] * 2, 3, None)


@pytest.fixture
def unknown():
    """Nobody has found out yet whether the kernels can be used; nor does anybody afterwards."""
    are_usable.cache_clear()
    yield
    are_usable.cache_clear()


@pytest.mark.parametrize("trouble", ["absent", "disabled", "damaged"])
def test_a_machine_without_compiled_kernels_makes_passes_by_torch(
    model, unknown, monkeypatch, trouble
):
    assert isinstance(passes_of(model, context_of(model)), FastestPasses)
    are_usable.cache_clear()
    if trouble == "absent":
        monkeypatch.setattr(compiled, "numba", None)
    elif trouble == "disabled":
        monkeypatch.setattr(kernels, "make_pass", kernels.make_pass.py_func)
    else:
        monkeypatch.setattr(kernels, "make_pass", mock.Mock(side_effect=EOFError))
    assert isinstance(passes_of(model, context_of(model)), TorchPasses)
    law_features(torch.zeros(1, 1, 3, requires_grad=True))


def test_a_numba_that_cannot_be_imported_is_none(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('needs another numpy')")
    code = "from draft_node.kernel_trial import are_usable; from specserve import compiled;"
    code += "print(are_usable(), compiled.WHY_NOT)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split(maxsplit=1) == ["False", "needs another numpy\n"]


def test_gates_of_any_size():
    gates = torch.cat([torch.linspace(-1000, 1000, 4000), torch.linspace(-9, 9, 96)])
    out = np.empty((1, len(gates)), np.float32)
    gated(torch.cat([gates, torch.ones(len(gates))])[None].numpy(), out)
    expected = torch.nn.functional.silu(gates.double()).numpy()
    np.testing.assert_allclose(out[0], expected, rtol=2e-6, atol=1e-20)


def test_exponentials_and_maxima():
    @np.vectorize
    def of(x):
        return exp(np.float32(x))

    x = np.linspace(-80, 80, 4001, dtype=np.float32)
    np.testing.assert_allclose(of(x), np.exp(x.astype(np.float64)), rtol=1e-5)
    small = x[abs(x) < 1]
    np.testing.assert_allclose(of(small), np.exp(small.astype(np.float64)), rtol=3e-7)
    assert exp(np.float32(0)) == 1
    assert 0 <= exp(np.float32(-1e30)) < 1e-37
    assert exp(np.float32(1e30)) > 1e38
    assert np.isnan(exp(np.float32(np.nan)))
    for size in (1, 7, 16, 33, 200):
        values = np.random.default_rng(size).normal(size=size).astype(np.float32) - 5
        assert largest(values) == values.max()
