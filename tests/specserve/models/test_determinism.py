"""Bits, not tolerances: a token's result must not depend on what is computed beside it."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.backends.cpu.parts import CompiledLinear, CpuParts, can_halve_exactly
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.linear import PlainLinear, TiledLinear, fixed_pieces
from specserve.backends.torch.parts import TorchParts
from specserve.models.dealing import Share, deal, deal_heads
from specserve.models.layers import RMSNorm, SwiGLU
from specserve.models.loader import load_with
from specserve.models.parallel import TensorParallel
from specserve.models.rope import rotate
from tests import golden_case
from tests.backends.chosen import can_compile
from tests.golden import Session
from tests.specserve.models import checkpoints
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint

CPU = torch.device("cpu")
PROMPT = torch.arange(64) * 11 % 64
needs_compiling = pytest.mark.skipif(not can_compile(), reason="no compiled products here")
needs_halves = pytest.mark.skipif(not can_halve_exactly(), reason="no 16-bit weights here")


def windows(length: int):
    for rows in range(1, length + 1):
        for first in {0, 3, length - rows}:
            if first + rows <= length:
                yield slice(first, first + rows)


@pytest.mark.parametrize("size", [8, 32, 48, 256, 1000])
def test_rms_norm_rows_do_not_depend_on_their_neighbours(size):
    norm = RMSNorm(torch.rand(size) + 0.5, 1e-6)
    x = torch.randn(64, size)
    expected = norm(x)
    assert all(torch.equal(norm(x[rows]), expected[rows]) for rows in windows(64))


@pytest.mark.parametrize("size", [8, 32, 128])
def test_rms_norm_of_a_head_does_not_depend_on_the_other_heads(size):
    x, weight = torch.randn(64, 16, size)[:, :12], torch.rand(size) + 0.5
    expected = RMSNorm(weight.expand(12, -1).clone(), 1e-6)(x)
    for heads in (1, 3, 6):
        norm = RMSNorm(weight.expand(heads, -1).clone(), 1e-6)
        for rows in windows(64):
            assert torch.equal(norm(x[rows, :heads]), expected[rows, :heads])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_agrees_with_torch(dtype):
    weight, x = (torch.rand(96) + 0.5).to(dtype), torch.randn(7, 5, 96).to(dtype)
    x[2, 1] = 0
    expected = torch.nn.functional.rms_norm(x.double(), (96,), weight.double(), 1e-6)
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        RMSNorm(weight, 1e-6)(x).double(), expected, atol=tolerance, rtol=tolerance
    )


def test_elementwise_rows_do_not_depend_on_their_neighbours():
    x, cos, sin = torch.randn(64, 12, 32), torch.randn(64, 1, 32), torch.randn(64, 1, 32)
    turned = rotate(x, cos, sin)
    for rows in windows(64):
        for heads in (1, 3, 6, 12):
            part = rotate(x[rows, :heads], cos[rows], sin[rows])
            assert torch.equal(part, turned[rows, :heads])


@pytest.mark.parametrize("width", [8, 100, 768, 1000, 5696])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_gates_do_not_depend_on_neighbours_shards_or_threads(width, num_threads):
    gates, ups = 3 * torch.randn(64, width), torch.randn(64, width)
    expected = SwiGLU(width, in_whole_vectors=True)(torch.cat([gates, ups], 1))
    torch.testing.assert_close(expected, torch.nn.functional.silu(gates) * ups)
    torch.set_num_threads(num_threads)
    for num_ranks in (1, 2, 3, 4, 5):
        for rows in (slice(0, 1), slice(5, 7), slice(3, 64), slice(0, 64)):
            shards = [
                SwiGLU(len(share), in_whole_vectors=True)(
                    torch.cat([x[rows, share.entries] for x in (gates, ups)], 1)
                )
                for share in deal(width, num_ranks)
            ]
            assert torch.equal(torch.cat(shards, 1), expected[rows])


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(("in_size", "out_size"), [(48, 64), (256, 1536), (4096, 96), (7, 5)])
def test_uncompiled_products_have_equal_bits_for_any_rows(in_size, out_size, num_threads):
    parts = TorchParts(dtype=torch.float32, device=CPU, deterministic=True)
    product = parts.linear([torch.randn(out_size, in_size)])
    assert isinstance(product, TiledLinear)
    check_any_rows(product, in_size, num_threads)


@needs_compiling
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("half_weights", [False, True])
@pytest.mark.parametrize(("in_size", "out_size"), [(48, 64), (256, 1536), (4096, 96), (7, 5)])
def test_compiled_products_have_equal_bits_for_any_rows(
    in_size, out_size, half_weights, num_threads
):
    parts = CpuParts(deterministic=True, half_weights=half_weights)
    product = parts.linear([torch.randn(out_size, in_size)])
    assert isinstance(product, CompiledLinear)
    check_any_rows(product, in_size, num_threads)


def check_any_rows(product, in_size, num_threads):
    x = torch.randn(300, in_size)
    expected = product(x)
    torch.set_num_threads(num_threads)
    for rows in [*windows(20), slice(0, 64), slice(7, 200), slice(299, 300)]:
        assert torch.equal(product(x[rows]), expected[rows])


@pytest.mark.parametrize(("deterministic", "kind"), [(True, TiledLinear), (False, PlainLinear)])
def test_the_references_weights_stay_whole(deterministic, kind):
    parts = TorchParts(dtype=torch.float32, device=CPU, deterministic=deterministic)
    weight = torch.randn(16, 64)
    product = parts.linear([weight])
    assert isinstance(product, kind)
    assert torch.equal(product(torch.eye(64)), weight.T)
    assert not parts.any_halved
    assert not parts.quantizes(weight)


@needs_compiling
@pytest.mark.parametrize(
    ("deterministic", "half_weights", "largest"),
    [(False, False, 1.0), (True, False, 1.0), (False, True, 7e4)],
)
def test_weights_are_not_halved_unasked_nor_where_they_do_not_fit(
    deterministic, half_weights, largest
):
    parts = CpuParts(deterministic=deterministic, half_weights=half_weights)
    weight = torch.zeros(16, 8)
    weight[3, 5] = -largest
    product = parts.linear([weight])
    assert not parts.any_halved
    assert product(torch.eye(8))[5, 3] == -largest


def halved(folder):
    model = load(folder)
    assert model.half_weights
    return model


def kept_whole(folder):
    return load_with(CpuParts(deterministic=True), folder, TensorParallel())


@pytest.mark.slow
@needs_halves
def test_a_target_of_16_bits_keeps_them(tmp_path):
    folder = write_checkpoint(tmp_path, QWEN3, hidden_size=256, intermediate_size=512)
    tensors = load_file(folder / "model.safetensors")
    # Vectors are never halved, and may stay as they are.
    tensors = {name: x.bfloat16() if x.dim() > 1 else x for name, x in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    expected, found = (
        Session(target, len(PROMPT)).feed(PROMPT)[0]
        for target in (kept_whole(folder), halved(folder))
    )
    assert torch.equal(found, expected)
    session = Session(halved(folder), len(PROMPT))
    chunks = [session.feed(chunk)[0] for chunk in PROMPT.split([30, 1, 1, 5, 27])]
    assert torch.equal(torch.cat(chunks), found)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("head_dim", [16, 10])
def test_tiled_products_have_equal_bits_for_any_rows_and_ranks(num_ranks, head_dim):
    torch.manual_seed(0)
    sizes = [heads * head_dim for heads in (9, 3, 3)]
    parts = [torch.randn(size, 40) for size in sizes]
    whole = TiledLinear(parts, tuple(Share(0, size, size) for size in sizes), 8)
    x = torch.randn(21, 40)
    expected = whole(x)
    torch.testing.assert_close(expected, x @ torch.cat(parts).T)

    for heads in deal_heads(9, 3, num_ranks):
        shares = heads.columns(head_dim)
        own = [part[share.entries] for part, share in zip(parts, shares, strict=True)]
        product = TiledLinear(own, shares, 8)
        of_whole = zip(expected.split(sizes, 1), shares, strict=True)
        wanted = torch.cat([part[:, share.entries] for part, share in of_whole], 1)
        for rows in windows(21):
            assert torch.equal(product(x[rows]), wanted[rows])


@pytest.mark.parametrize("size", [5, 64, 100, 131])
def test_all_pieces_of_a_weight_have_one_shape_for_any_number_of_ranks(size):
    weight = torch.randn(size, 3)
    shapes = set()
    for num_ranks in range(1, min(size, 12) + 1):
        for share in deal(size, num_ranks):
            pieces = fixed_pieces(weight[share.entries], share)
            shapes |= {piece.shape for piece, _ in pieces}
            held = torch.cat([piece[wanted] for piece, wanted in pieces])
            assert torch.equal(held, weight[share.entries])
    assert len(shapes) == 1


@pytest.mark.parametrize(
    "config", [QWEN3, pytest.param(LLAMA, marks=pytest.mark.slow)], ids=["qwen3", "llama"]
)
@pytest.mark.parametrize("products", ["compiled", "torch between", "reference"])
def test_a_prompt_gives_equal_bits_in_chunks_of_any_size(tmp_path, monkeypatch, config, products):
    if products == "torch between":
        monkeypatch.setattr(golden_case, "BACKEND", TorchBackend(CPU))
    elif products == "reference":
        monkeypatch.setattr(golden_case, "BACKEND", TorchBackend(CPU))
        monkeypatch.setattr(checkpoints, "BACKEND", TorchBackend(CPU))
    target = load(write_checkpoint(tmp_path, config))
    session = Session(target, len(PROMPT))
    expected, _ = session.feed(PROMPT)
    expected_logits = session.logits(expected)
    for size in (1, 2, 3, 5, 8, 17, 33, 63):
        session = Session(target, len(PROMPT))
        hidden = torch.cat([session.feed(chunk)[0] for chunk in PROMPT.split(size)])
        assert torch.equal(hidden, expected), size
        assert torch.equal(session.logits(hidden), expected_logits), size
