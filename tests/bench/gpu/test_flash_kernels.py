"""Which of flashinfer's kernels are compiled for which models, and what is said without it."""

from pathlib import Path

import pytest
import torch

from bench.gpu.flash_kernels import main, modules
from specserve.backends.cuda import flash
from specserve.backends.cuda.flash import Heads


class Spec:
    """A module that stands for one of flashinfer's."""

    def __init__(self, name: str) -> None:
        self.name, self.is_compiled, self.was_built = name, False, 0

    def build(self, verbose: bool) -> None:
        if self.name.startswith("broken"):
            raise RuntimeError("Ninja build failed.")
        self.was_built += 1


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    found: dict[str, Spec] = {}

    def modules_of(heads: Heads) -> list[Spec]:
        names = [f"prefill {heads.head_dim} {heads.dtype}", "merging"]
        return [found.setdefault(name, Spec(name)) for name in names]

    def modules_of_layers() -> list[Spec]:
        return [found.setdefault("norms", Spec("norms"))]

    monkeypatch.setattr("bench.gpu.flash_kernels.modules_of", modules_of)
    monkeypatch.setattr("bench.gpu.flash_kernels.modules_of_layers", modules_of_layers)
    monkeypatch.setattr(flash, "flashinfer", object())
    return found


def test_each_module_is_compiled_once(specs: dict[str, Spec], capsys: pytest.CaptureFixture):
    words = ["--heads", "9:3:64", "32:8:128", "64:8:128", "--dtypes", "bfloat16", "float16"]
    assert main(words) == 0
    assert len(specs) == 6  # two sizes in two dtypes, and what all share
    assert {each.was_built for each in specs.values()} == {1}
    assert capsys.readouterr().out.count("compiled in 0 s") == 6
    assert main([*words, "--list"]) == 0
    assert {each.was_built for each in specs.values()} == {1}


def test_what_cannot_be_compiled_ends_it(
    specs: dict[str, Spec], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    broken = [Spec("broken"), Spec("next")]
    monkeypatch.setattr("bench.gpu.flash_kernels.modules_of", lambda _: broken)
    assert main(["--heads", "9:3:64"]) == 1
    assert "broken: Ninja build failed." in capsys.readouterr().err
    assert broken[1].was_built == 0


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        ("9:3", "9:3 is not QUERY_HEADS:KEY_HEADS:SIZE, as 32:8:128"),
        ("9:0:64", "9:0:64 is not QUERY_HEADS"),
        ("9:2:64", "9 is no multiple of 2"),
        ("8:2:80", "heads of 80; there are 64, 128, 256"),
    ],
)
def test_heads_that_are_none(heads: str, words: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        main(["--heads", heads])
    assert words in capsys.readouterr().err


def test_without_flashinfer_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr(flash, "flashinfer", None)
    assert main(["--heads", "9:3:64"]) == 2
    assert "pip install 'specserve[gpu]'" in capsys.readouterr().err


def test_names_of_the_installed_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    flashinfer = pytest.importorskip("flashinfer", reason="flashinfer is not installed")
    context = flashinfer.jit.core.current_compilation_context  # made when it is imported
    monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(9, "0a")})
    for name in ("FLASHINFER_GEN_SRC_DIR", "FLASHINFER_JIT_DIR"):
        monkeypatch.setattr(flashinfer.jit.env, name, tmp_path)
    found = [each.name for each in modules([(9, 3, 64), (32, 8, 128)], [torch.bfloat16])]
    assert [name.split("_with")[0] for name in found] == [
        "batch_prefill",
        "cascade",
        "batch_decode",
        "batch_prefill",
        "norm",
        "rope",
    ]
