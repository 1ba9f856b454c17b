"""Training and calibration with `--device cuda`: the figures of the CPU, and folders that load."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from draft_node.calibration import run as calibration
from draft_node.training import text_source
from draft_node.training.__main__ import main as train
from draft_node.training.self_text import SelfTextConfig
from specserve.cli import main as specserve
from specserve.commands import calibrate as calibrate_command
from specserve.commands.calibrate import Job
from specserve.drafters.load import load_drafter
from specserve.drafters.weights import TargetWeights
from tests.draft_node.training.drafters import TEXT, write_target
from tests.specserve.drafters.checkpoints import options

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = "cuda"
SMALL_POOL = SelfTextConfig(rows=512, length=32, shortest_prompt=2, longest_prompt=8)
BLOCKS = ("--anchors", "16", "--gamma", "3", "--self-tokens", "1000")
KINDS = {
    "dspark": (*BLOCKS, "--rank", "8", "--max-gap", "2"),
    "dflash": (*BLOCKS, "--layers", "1"),
    "eagle3": BLOCKS,
    "lm": (
        "--hidden", "16", "--layers", "1", "--intermediate", "24", "--heads", "2",
        "--kv-heads", "1", "--head-dim", "8", "--self-text", "0",
    ),
    "local-head": ("--width", "12", "--rank", "5", "--self-text", "0"),
}  # fmt: skip
STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and text to train on, which no test changes."""
    folder = tmp_path_factory.mktemp("run")
    write_target(folder / "target")
    (folder / "text.txt").write_text("\n".join(TEXT))
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Train on a device; the folder that was written."""
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: SMALL_POOL)

    def run(kind: str, device: str, *flags: str) -> Path:
        out = tmp_path / device.replace(":", "-")
        words = ["--target", folder / "target", "--text", folder / "text.txt", "--out", out]
        words += ["--work", tmp_path / "work", "--threads", "1", "--tokens-per-step", "512"]
        words += ["--device", device, *KINDS[kind], *(flags or ("--steps", STEPS))]
        assert train([kind, *map(str, words)]) == 0
        return out

    return run


def numbers(found: object) -> list[float]:
    """All that stand in a file of figures."""
    if isinstance(found, dict):
        return [x for value in found.values() for x in numbers(value)]
    if isinstance(found, list):
        return [x for value in found for x in numbers(value)]
    return [float(found)] if isinstance(found, int | float) else []


@pytest.mark.parametrize("kind", KINDS)
def test_so_many_steps_come_to_the_figures_of_the_cpu(
    folder: Path, run: Callable[..., Path], kind: str
):
    figures = []
    for device in ("cpu", DEVICE):
        out = run(kind, device)
        held_out = json.loads((out / "held_out.json").read_text())
        held_out.pop("training", None)
        figures.append(torch.tensor(numbers(held_out)))
    assert len(figures[0]) > 1
    torch.testing.assert_close(figures[1], figures[0], rtol=0.05, atol=0.02)
    if kind != "local-head":  # which is added to a DFlash
        drafter = load_drafter(out, TargetWeights.of(folder / "target"), options(gamma=3))
        assert drafter.gamma == 3


@pytest.mark.parametrize("kind", ["dspark", "lm"])
def test_a_run_goes_on_where_it_ended(run: Callable[..., Path], kind: str):
    run(kind, DEVICE)
    out = run(kind, DEVICE, "--steps", str(STEPS + 20))
    assert f"--steps {STEPS + 20}" in (out / "README.md").read_text()


@pytest.fixture
def whole_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration in this process, of drafters with 32 bits on a CPU, too: others draft others."""

    run = subprocess.run

    def here(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if calibrate_command._MODULE not in command:
            return run(command, **options)  # pyright: ignore[reportCallIssue]
        silent = Console(file=io.StringIO())
        calibration.calibrate(Job.decode(command[-1]), silent, silent)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(calibrate_command.subprocess, "run", here)
    monkeypatch.setattr(calibration, "DRAFTER_BITS", 32)


@pytest.mark.usefixtures("whole_weights")
def test_calibration_finds_what_it_finds_on_the_cpu(tmp_path: Path):
    reached, temperatures = [], []
    for device in ("cpu", DEVICE):
        out = tmp_path / device
        words = ["calibrate", "--drafter", "dspark", "--device", device, "--out", str(out)]
        words += ["--num-prompts", "4", "--num-tokens", "32", "--no-speed"]
        assert specserve(words) == 0
        found = json.loads((out / "calibration.json").read_text())
        temperatures.append(torch.tensor(found["temperatures"]))
        reached.append(torch.tensor([x["mean_target"] for x in found["evaluation"]["before"]]))
    torch.testing.assert_close(reached[1], reached[0], rtol=0, atol=0.002)
    often = reached[0] > 0.05  # by less than a block or two otherwise
    assert often.sum() >= 3
    torch.testing.assert_close(temperatures[1][often], temperatures[0][often], rtol=0, atol=0.1)
