"""Weights that a checkpoint stores in 16 bits are kept so, and no bit of a result changes by it."""

import pytest
import torch
from safetensors.torch import save_file

from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.parts import CpuParts, can_halve_exactly
from specserve.backends.cpu.row_kernels import row_kernels
from specserve.backends.torch.backend import TorchBackend
from specserve.errors import Unsupported
from specserve.models.loader import load_with
from specserve.models.parallel import TensorParallel
from tests.backends.chosen import BACKEND
from tests.golden import Session
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, random_tensors, write_config

PROMPT = torch.arange(21) * 11 % 64
BRAIN, HALF = torch.bfloat16, torch.float16
pytestmark = pytest.mark.skipif(not can_halve_exactly(), reason="no compiled products here")


def stored(folder, config=QWEN3, dtype_of=lambda name: BRAIN, change=lambda name, x: x):
    """A checkpoint whose matrices are stored in `dtype_of` their names."""
    write_config(folder, config)
    tensors = {
        name: change(name, x).to(dtype_of(name)) if x.dim() > 1 else x
        for name, x in random_tensors(folder).items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def kept_whole(folder):
    return load_with(CpuParts(deterministic=True), folder, TensorParallel())


def served_in(dtype, folder):
    """As `--dtype` does on a CPU."""
    return load(folder, dtype=dtype)


def hidden_of(model, chunk=None):
    session = Session(model, len(PROMPT))
    return torch.cat([session.feed(part)[0] for part in PROMPT.split(chunk or len(PROMPT))])


def with_keys_in_half(name):
    return HALF if "k_proj" in name or "up_proj" in name else BRAIN


def far_apart(name, x):
    """Neither kind of 16 bits holds queries and keys, or gates and ups, together."""
    if "q_proj" in name:
        return x * 1e7
    return x * 1e-5 if "gate_proj" in name else x


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
@pytest.mark.parametrize(
    ("dtype_of", "change"),
    [
        (lambda name: BRAIN, lambda name, x: x),
        (lambda name: HALF, lambda name, x: x * 1e-4),  # many of them subnormal
        (with_keys_in_half, lambda name, x: x),
        (with_keys_in_half, far_apart),
    ],
    ids=["bfloat16", "float16", "mixed", "far apart"],
)
def test_the_default_keeps_16_bits_and_every_bit_of_the_result(tmp_path, config, dtype_of, change):
    folder = stored(tmp_path, config, dtype_of, change)
    whole, default = kept_whole(folder), load(folder)
    assert default.half_weights
    assert not whole.half_weights
    assert torch.equal(hidden_of(default), hidden_of(whole))


def storages_of(model):
    return {layer.gate_up.kernels.storage for layer in model.layers}


def test_ballast_is_kept_in_as_many_bits(tmp_path):
    folder = stored(tmp_path)
    model = load(folder, ballast=100_000)
    assert torch.equal(hidden_of(model), hidden_of(load(folder)))
    dtypes = {layer.gate_up.weight.dtype for layer in model.layers}
    assert dtypes == {torch.bfloat16}


def test_a_weight_that_is_no_number_is_as_it_was(tmp_path):
    def broken(name, x):
        if "0.mlp.down_proj" in name:
            x[3, 5] = torch.nan
        return x

    model = load(stored(tmp_path, change=broken))
    assert hidden_of(model).isnan().any()


@pytest.mark.parametrize("whole", ["embed_tokens", "1.mlp.down_proj"])
def test_one_matrix_in_float32_keeps_the_others_so(tmp_path, whole):
    def dtype_of(name):
        return torch.float32 if whole in name else BRAIN

    folder = stored(tmp_path, dtype_of=dtype_of)
    assert not load(folder).half_weights


def test_bfloat16_on_a_cpu_is_that_of_weights_and_of_what_they_are_multiplied_by(tmp_path):
    config = QWEN3 | {"hidden_size": 64}
    folder = stored(tmp_path, config, lambda name: torch.float32)
    model, whole = served_in(BRAIN, folder), load(folder)
    assert (model.dtype, model.embedding.dtype, whole.dtype) == (BRAIN, *[torch.float32] * 2)
    assert torch.equal(model.embedding, whole.embedding.to(BRAIN).float())
    fastest = Storage.DOTTED if row_kernels(Storage.DOTTED) else Storage.BFLOAT16
    assert storages_of(model) == {fastest}
    hidden = hidden_of(model)
    torch.testing.assert_close(hidden, hidden_of(whole), atol=0.1, rtol=0.1)
    assert not torch.equal(hidden, hidden_of(whole))
    assert all(torch.equal(hidden_of(model, chunk), hidden) for chunk in (1, 5, 8))


def test_float16_on_a_cpu_is_that_of_weights_alone(tmp_path):
    """No inputs are rounded, since that would make nothing faster."""
    names = ["whole", "half"]
    for name, dtype in zip(names, (torch.float32, HALF), strict=True):
        (tmp_path / name).mkdir()
        stored(tmp_path / name, dtype_of=lambda _, dtype=dtype: dtype)
    model = served_in(HALF, tmp_path / "whole")
    assert (model.dtype, storages_of(model)) == (HALF, {Storage.FLOAT16})
    norms_aside = load(tmp_path / "half")
    for layer, other in zip(model.layers, norms_aside.layers, strict=True):
        assert torch.equal(layer.gate_up.weight, other.gate_up.weight)


def test_without_compiled_products_weights_are_rounded_all_the_same(tmp_path, caplog):
    folder = stored(tmp_path, dtype_of=lambda name: torch.float32)
    compiled = served_in(HALF, folder)
    model = load(folder, dtype=HALF, backend=TorchBackend(torch.device("cpu")))
    assert (model.dtype, model.half_weights) == (HALF, False)
    assert "torch.float16: rounded, and kept in float32" in caplog.text
    torch.testing.assert_close(hidden_of(model), hidden_of(compiled), atol=1e-4, rtol=1e-4)


def test_what_float16_cannot_hold_is_refused(tmp_path):
    folder = stored(tmp_path, change=far_apart)
    with pytest.raises(
        Unsupported, match=r"dtype: a weight is beyond float16's 65504; serve it in"
    ):
        served_in(HALF, folder)
    assert served_in(BRAIN, folder).dtype == BRAIN


def test_every_tensor_is_rounded_and_arithmetic_is_as_deterministic_as_wished(tmp_path):
    folder = stored(tmp_path, dtype_of=lambda name: torch.float32)
    model = served_in(BRAIN, folder)
    layer = model.layers[0]
    norms = [model.final_norm, layer.input_norm, layer.mlp_norm, layer.qk_norm]
    for weight in (norm.weight for norm in norms):
        assert torch.equal(weight, weight.to(BRAIN).float())
    for wish in (True, False):
        parts = BACKEND.target_parts(BRAIN, deterministic=wish, is_stored_in_16_bits=False)
        assert parts.deterministic is wish
