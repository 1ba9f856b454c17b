"""Noise by a Triton kernel: its source over arrays, and the kernel itself where Triton is."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from specserve import noise
from specserve.backends.cuda import noise as cuda_noise
from specserve.backends.cuda import triton_noise
from tests.backends.cuda.triton_stand_in import Language, run
from tests.device.pretended import DEVICE, PretendedCuda

has_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


class InPlaceOfTriton:
    """`triton`, as far as one kernel is compiled and begun by it; words come out `off`."""

    __version__ = "0.0"

    def __init__(self, off: float = 0.0, error: Exception | None = None) -> None:
        self.off, self.error = off, error
        self.num_begun = 0

    def jit(self, kernel):
        return _Begun(self, kernel)


class _Begun:
    def __init__(self, library: InPlaceOfTriton, kernel) -> None:
        self._library, self._kernel = library, kernel

    def __getitem__(self, grid: tuple[int, int]):
        def begin(*given, **sizes) -> None:
            self._library.num_begun += 1
            if self._library.error is not None:
                raise self._library.error
            run(self._kernel, triton_noise.tl, grid, *given, **sizes)
            given[5].add_(self._library.off)

        return begin


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> Language:
    made = Language()
    monkeypatch.setattr(triton_noise, "tl", made)
    return made


def random_words(num_rows: int, num_blocks: int, *, share_blocks: bool) -> list[torch.Tensor]:
    """Counters and keys of all bits, as the operator takes them."""
    rng = np.random.default_rng(num_rows + num_blocks)
    blocks = rng.integers(0, 2**32, (1 if share_blocks else num_rows, num_blocks))
    words = rng.integers(0, 2**32, (3, num_rows))
    seeds = rng.integers(-(2**63), 2**63 - 1, num_rows)
    return [torch.from_numpy(each) for each in (blocks, *words, seeds)]


@pytest.mark.parametrize("share_blocks", [False, True])
@pytest.mark.parametrize(("num_rows", "num_blocks"), [(1, 1), (3, 255), (2, 256), (5, 700)])
def test_its_source_makes_the_words_of_the_definition(
    language: Language, monkeypatch, num_rows: int, num_blocks: int, share_blocks: bool
):
    monkeypatch.setattr(triton_noise, "triton", InPlaceOfTriton())
    given = random_words(num_rows, num_blocks, share_blocks=share_blocks)
    found = triton_noise.TritonNoise()(*given)
    assert torch.equal(found, noise.philox_floats(*given))


def test_no_rows_have_no_words(language: Language, monkeypatch):
    library = InPlaceOfTriton()
    monkeypatch.setattr(triton_noise, "triton", library)
    given = [torch.zeros(1, 4).long(), *torch.zeros(4, 0).long()]
    assert triton_noise.TritonNoise()(*given).shape == (0, 4, 4)
    assert library.num_begun == 0


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (InPlaceOfTriton(), ""),
        (InPlaceOfTriton(off=1.0), "triton 0.0 makes other words"),
        (InPlaceOfTriton(error=RuntimeError("no cc")), "triton 0.0: RuntimeError: no cc"),
    ],
)
def test_a_kernel_that_is_wrong_is_found_out(language: Language, monkeypatch, library, why: str):
    monkeypatch.setattr(triton_noise, "triton", library)
    assert triton_noise.trial(triton_noise.TritonNoise(), torch.device("cpu")) == why


def test_without_triton_noise_is_torch_s_and_captured(cuda: PretendedCuda, monkeypatch):
    monkeypatch.setattr(triton_noise, "triton", None)
    monkeypatch.setattr(triton_noise, "_WHY_NOT", "it is not there")
    assert cuda_noise.choose(DEVICE) == "torch's: cannot import triton (it is not there)"
    assert not cuda_noise._KERNELS


def test_a_kernel_that_works_makes_all_noise(cuda: PretendedCuda, monkeypatch):
    def works(kernel: object, device: torch.device) -> str:
        return ""

    monkeypatch.setattr(triton_noise, "triton", InPlaceOfTriton())
    monkeypatch.setattr(triton_noise, "trial", works)
    monkeypatch.setattr(triton_noise.TritonNoise, "__call__", lambda _, *given: given)
    assert cuda_noise.choose(DEVICE) == "triton 0.0's"
    try:
        assert cuda_noise.philox_floats(1, 2, 3, 4, 5) == (1, 2, 3, 4, 5)  # type: ignore
    finally:
        monkeypatch.setattr(triton_noise, "triton", None)
        cuda_noise.choose(DEVICE)


INTERPRETED = """
    import torch
    from specserve import noise
    from specserve.backends.cuda.triton_noise import TritonNoise
    from tests.backends.cuda.test_triton_noise import random_words

    for num_rows, num_blocks, share in ((1, 1, True), (3, 255, False), (2, 300, True)):
        given = random_words(num_rows, num_blocks, share_blocks=share)
        assert torch.equal(TritonNoise()(*given), noise.philox_floats(*given))
"""
COMPILED = """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from specserve.backends.cuda.triton_noise import word_floats

    names = ("blocks", "positions", "sample_words", "purpose_words", "seeds")
    signature = dict.fromkeys(names, "*i64") | {"out": "*fp32"}
    signature |= {"num_blocks": "i32", "blocks_stride": "i32", "LANES": "constexpr"}
    source = ASTSource(triton.jit(word_floats), signature, {"LANES": 256})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["ptx"].count("mul.hi.u32") + made.asm["ptx"].count("mul.wide.u32") >= 20
    assert len(made.asm["cubin"]) > 1000
"""


@has_triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "flags"),
    [(INTERPRETED, {"TRITON_INTERPRET": "1"}), (COMPILED, {})],
    ids=["interpreted", "compiled for sm_90"],
)
def test_the_kernel_itself(code: str, flags: dict[str, str]):
    """Both need Triton and no GPU."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
