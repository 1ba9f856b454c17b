"""Which products serve: compiled ones where they can be had and are right, others elsewhere."""

import logging
from dataclasses import replace

import pytest

from specserve.backends.cpu import machine_code
from specserve.backends.cpu import row_kernels as module
from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.machine_code import Team, host_machine
from specserve.backends.cpu.parts import can_halve_exactly
from specserve.backends.cpu.row_kernels import row_kernels
from tests.backends.chosen import can_compile

pytestmark = pytest.mark.skipif(host_machine() is None, reason="no compiled products here")


@pytest.mark.slow
def test_wrong_products_are_not_used(anew, monkeypatch, caplog):
    code = module.code
    spoilt = {
        "a lost term": ("%k = phi i64 [0, %block]", "%k = phi i64 [1, %block]"),
        "another row": ("ptr %inputs, i64 %x.start.1\n", "ptr %inputs, i64 %x.start.0\n"),
        "another column": (
            "call <{n} x float> @llvm.fma.v{n}f32(<{n} x float> %x.2, <{n} x float> %w.1",
            "call <{n} x float> @llvm.fma.v{n}f32(<{n} x float> %x.2, <{n} x float> %w.0",
        ),
    }
    machine = host_machine()
    assert machine is not None
    for right, wrong in spoilt.values():
        row_kernels.cache_clear()
        words = [text.replace("{n}", str(machine.lanes)) for text in (right, wrong)]
        monkeypatch.setattr(module, "code", lambda *of, words=words: _spoilt(code(*of), *words))
        with caplog.at_level(logging.WARNING):
            assert row_kernels(Storage.FLOAT32) is None
        assert caplog.messages == ["compiled matrix products are wrong on this machine, not used"]
        caplog.clear()


def _spoilt(text, right, wrong):
    assert right in text
    return text.replace(right, wrong)


def test_a_compiler_that_refuses_is_done_without(anew, monkeypatch, caplog):
    monkeypatch.setattr(module, "code", lambda *_: "no code")
    with caplog.at_level(logging.WARNING):
        assert row_kernels(Storage.FLOAT32) is None
    assert "matrix products are not compiled: " in caplog.text


def test_without_halves_float16_is_not_had(anew, monkeypatch):
    machine = host_machine()
    assert machine is not None
    monkeypatch.setattr(module, "host_machine", lambda: replace(machine, has_halves=False))
    assert row_kernels(Storage.FLOAT16) is None
    assert row_kernels(Storage.BFLOAT16) is not None
    assert not can_halve_exactly()


class _NoFeatures:
    @staticmethod
    def get_host_cpu_features():
        raise RuntimeError("failed to get host cpu features.")


@pytest.mark.parametrize("missing", ["llvm", "vectors", "features", "threads"])
def test_where_they_cannot_be_had_the_reference_serves(anew, monkeypatch, missing):
    if missing == "llvm":
        monkeypatch.setattr(machine_code, "llvm", None)
    elif missing == "vectors":
        monkeypatch.setattr(module, "host_machine", lambda: None)
    elif missing == "features":
        monkeypatch.setattr(machine_code, "llvm", _NoFeatures)
    else:
        monkeypatch.setattr(Team, "of_torch", lambda: None)
    assert row_kernels(Storage.FLOAT32) is None
    CpuBackend.why_not.cache_clear()
    obstacle = CpuBackend.why_not()
    if missing == "llvm":
        assert obstacle.startswith("cannot import llvmlite")
    else:
        assert obstacle == "no machine code can be made for this processor"
    CpuBackend.why_not.cache_clear()


@pytest.mark.skipif(not can_compile(), reason="no numba, or no vectors that we know")
def test_what_is_compiled_here_passes_its_self_test():
    """Else services would quietly compute by the reference."""
    assert CpuBackend.why_not() == ""
