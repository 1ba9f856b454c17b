"""Which backend computes: the fastest that there is and that is right; the reference elsewhere."""

import logging
import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity

from specserve.backends import choose
from specserve.backends.choose import choose_backend
from specserve.backends.cpu import compiled, machine_code, noise, self_test
from specserve.backends.cpu import forward as attention_module
from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cpu.forward import CompiledForward
from specserve.backends.cpu.machine_code import host_machine
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.forward import TorchForward
from tests.backends.chosen import CPU
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint

# Not where the self-test says that they are wrong: that is what this is to tell.
has_compiler = pytest.mark.skipif(
    compiled.numba is None or host_machine() is None, reason="no numba, or no vectors that we know"
)
CACHES = (
    choose._chosen,
    CpuBackend.why_not,
    noise.register,
    self_test.are_usable,
    attention_module.attention_kernels,
)


@pytest.fixture
def anew():
    """Whoever chooses during the test finds everything out."""
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


def made(backend, model, **options):
    return backend.make_forward(model, num_blocks=9, block_size=16, deterministic=True, **options)


@has_compiler
@pytest.mark.slow
def test_a_processor_that_we_know_has_compiled_forwards(anew, qwen3, caplog):
    with caplog.at_level(logging.INFO):
        backend = choose_backend(CPU)
    assert backend.name == "cpu"
    assert type(made(backend, qwen3)) is CompiledForward
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("backend:")]
    assert line == "backend: cpu on cpu: forwards and noise are compiled for this processor"


@pytest.mark.parametrize(
    ("module", "place", "name"),
    [(compiled, "numba", "numba"), (machine_code, "llvm", "llvmlite")],
)
def test_without_a_package_the_reference_serves_and_says_what_to_install(
    anew, monkeypatch, caplog, module, place, name
):
    monkeypatch.setattr(module, place, None)
    monkeypatch.setattr(module, "WHY_NOT", "it is not there")
    with caplog.at_level(logging.INFO):
        backend = choose_backend(CPU)
    assert type(backend) is TorchBackend
    assert f"backend: torch on cpu: cannot import {name} (it is not there)" in caplog.text
    assert "pip install 'specserve[cpu]'" in caplog.text


@pytest.mark.parametrize("hidden", [["numba"], ["llvmlite", "numba"]])
def test_what_is_not_installed_is_named(hidden):
    """In a process of its own, since modules import these packages once."""
    code = (
        "import sys; "
        f"sys.modules.update(dict.fromkeys({hidden})); "
        "from specserve.backends.cpu.backend import CpuBackend; "
        "print(CpuBackend.why_not())"
    )
    words = [sys.executable, "-c", code]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert told.startswith(f"cannot import {hidden[0]} (")
    assert all(f"{name} (" in told for name in hidden)
    assert told.endswith("; pip install 'specserve[cpu]' brings numba and llvmlite\n")


def test_an_unknown_processor_is_served_by_the_reference(anew, monkeypatch, caplog):
    monkeypatch.setattr("specserve.backends.cpu.backend.row_kernels", lambda _: None)
    with caplog.at_level(logging.INFO):
        assert type(choose_backend(CPU)) is TorchBackend
    assert "no machine code can be made for this processor" in caplog.text
    assert "pip install" not in caplog.text


def test_a_profile_records_the_host_and_the_device_that_computes():
    assert TorchBackend(CPU).profiler_activities == (ProfilerActivity.CPU,)
    on_gpu = TorchBackend(torch.device("cuda", 0))
    assert on_gpu.profiler_activities == (ProfilerActivity.CPU, ProfilerActivity.CUDA)


def test_the_choice_is_said_by_every_process_that_was_forked(caplog):
    choose.preload()
    for _ in range(2):
        with caplog.at_level(logging.INFO):
            choose_backend(CPU)
    assert caplog.text.count("backend: ") == 2


@has_compiler
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
    assert type(made(CpuBackend(CPU), model)) is kind


@has_compiler
@pytest.mark.parametrize(
    ("kv_dtype", "kind"),
    [(None, CompiledForward), (torch.bfloat16, CompiledForward), (torch.float16, TorchForward)],
)
def test_keys_and_values_are_kept_as_asked_for_by_whoever_can(qwen3, kv_dtype, kind):
    forward = made(CpuBackend(CPU), qwen3, kv_dtype=kv_dtype)
    assert type(forward) is kind
    kept = kv_dtype or torch.float32
    assert (
        forward.cache.kept_dtype == forward.cache.keys.dtype == forward.cache.values.dtype == kept
    )


def test_the_reference_keeps_keys_and_values_as_asked_for_too(qwen3):
    forward = made(TorchBackend(CPU), qwen3, kv_dtype=torch.bfloat16)
    assert forward.cache.keys.dtype == torch.bfloat16


@has_compiler
def test_what_is_handed_to_the_reference_is_said_once(tmp_path, caplog):
    model = load(write_checkpoint(tmp_path, QWEN3), dtype=torch.float64)
    from specserve.backends.cpu import backend as module

    module._hand_over.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            made(CpuBackend(CPU), model)
    assert caplog.text.count("forwards of the target: by torch") == 1


@has_compiler
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
def test_wrong_ones_are_not_used(anew, monkeypatch, caplog, right, wrong):
    code, spoilt_ones = attention_module.code, []

    def spoilt(shape):
        text = code(shape)
        spoilt_ones.append(right in text)
        return text.replace(right, wrong)

    monkeypatch.setattr(attention_module, "code", spoilt)
    with caplog.at_level(logging.WARNING):
        assert type(choose_backend(CPU)) is TorchBackend
    assert any(spoilt_ones)
    assert "forwards are made without compiled kernels: ArithmeticError" in caplog.text
