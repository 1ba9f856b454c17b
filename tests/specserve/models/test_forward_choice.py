"""Which forwards serve: compiled ones where they can be had and are right, torch's elsewhere."""

import logging

import pytest
import torch

from specserve.backends.cpu import compiled
from specserve.models import attention_kernels as attention_module
from specserve.models.compiled_forward import CompiledForward
from specserve.models.forward import make_forward
from specserve.models.forward_trial import are_usable
from specserve.models.linear import can_compile
from specserve.models.torch_forward import TorchForward
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint

# Not where the trial says that they are wrong: that is what this is to tell.
pytestmark = pytest.mark.skipif(
    compiled.numba is None or not can_compile(), reason="no numba, or no vectors that we know"
)


@pytest.fixture
def anew():
    """Whoever asks whether they are usable during the test finds it out."""
    are_usable.cache_clear()
    attention_module.attention_kernels.cache_clear()
    yield
    are_usable.cache_clear()
    attention_module.attention_kernels.cache_clear()


def made(model, **options):
    return make_forward(model, num_blocks=9, block_size=16, deterministic=True, **options)


def kind_made(model):
    return type(made(model))


@pytest.mark.slow
def test_they_serve_where_they_can(anew, qwen3):
    assert kind_made(qwen3) is CompiledForward


def test_without_numba_torch_serves(anew, qwen3, monkeypatch, caplog):
    monkeypatch.setattr(compiled, "numba", None)
    with caplog.at_level(logging.INFO):
        assert kind_made(qwen3) is TorchForward
    assert "forwards are made without numba, which is slower" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.float64, TorchForward),
        (torch.bfloat16, CompiledForward),  # of weights: the rest is float32
        (torch.float16, CompiledForward),
    ],
)
def test_what_is_not_float32_is_torchs(tmp_path, dtype, kind):
    model = load(write_checkpoint(tmp_path, QWEN3), dtype=dtype)
    assert kind_made(model) is kind


@pytest.mark.parametrize(
    ("kv_dtype", "kind"),
    [(None, CompiledForward), (torch.bfloat16, CompiledForward), (torch.float16, TorchForward)],
)
def test_keys_and_values_are_kept_as_asked_for_by_whoever_can(qwen3, kv_dtype, kind):
    forward = made(qwen3, kv_dtype=kv_dtype)
    assert type(forward) is kind
    kept = kv_dtype or torch.float32
    assert (
        forward.cache.kept_dtype == forward.cache.keys.dtype == forward.cache.values.dtype == kept
    )


def test_without_numba_keys_and_values_are_kept_as_asked_for_too(anew, qwen3, monkeypatch):
    monkeypatch.setattr(compiled, "numba", None)
    forward = made(qwen3, kv_dtype=torch.bfloat16)
    assert (type(forward), forward.cache.keys.dtype) == (TorchForward, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("%place = phi i64 [0, %compared]", "%place = phi i64 [16, %compared]"),
        ("icmp ult i64 %t.wanted.0, %last", "icmp ugt i64 %t.wanted.0, %last"),
        ("%left = sub i64 %seen, %first", "%left = sub i64 %seen, 1"),
        ("fma.v16f32(<16 x float> %series.4", "fma.v16f32(<16 x float> %series.3"),
        ("shl <16 x i32> %w.0.wide, splat (i32 16)", "shl <16 x i32> %w.0.wide, splat (i32 15)"),
        ("add <1 x i32> %odd, splat (i32 32767)", "add <1 x i32> %odd, splat (i32 0)"),
    ],
)
def test_wrong_ones_are_not_used(anew, qwen3, monkeypatch, caplog, right, wrong):
    code, spoilt_ones = attention_module.code, []

    def spoilt(shape):
        text = code(shape)
        spoilt_ones.append(right in text)
        return text.replace(right, wrong)

    monkeypatch.setattr(attention_module, "code", spoilt)
    with caplog.at_level(logging.WARNING):
        assert kind_made(qwen3) is TorchForward
    assert any(spoilt_ones)
    assert "forwards are made without compiled kernels: ArithmeticError" in caplog.text
