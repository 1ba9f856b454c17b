"""Runs of several processes, as they are started: who ends with whom, and what is said of it."""

import argparse
import os
import subprocess
import sys

import pytest

from draft_node.training import companions
from draft_node.training.checkpoint import FILE_NAME, load
from specserve.errors import InvalidField
from tests.draft_node.training.drafters import write_chats, write_target
from tests.reliability.scale import is_long

# Found by every Python that is started below: what befalls the second process of a run.
_ENDS_AT_ONCE = "import os, sys\nif '--process' in sys.argv: os._exit(9)\n"
_STOPS_AT_A_STEP = """
import sys
if '--process' in sys.argv:
    from draft_node.training.trainer import Trainer
    def step(self, schedule): raise RuntimeError('no memory left')
    Trainer._step = step
"""
_IS_TOLD_TO_STOP = """
import os, signal, sys
if 'lm' in sys.argv and '--process' not in sys.argv:
    from draft_node.training.trainer import Trainer
    original = Trainer._step
    def step(self, schedule):
        if self.progress.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, schedule)
    Trainer._step = step
"""


@pytest.fixture
def start(tmp_path):
    """Begin a run of two processes, on chats of a small target."""
    target, chats = write_target(tmp_path / "target"), write_chats(tmp_path / "chats")
    (tmp_path / "temporary").mkdir()

    def begin(*flags: str, befalls: str = "") -> subprocess.Popen[str]:
        (tmp_path / "sitecustomize.py").write_text(befalls)
        words = ["lm", "--target", target, "--data", chats, "--work", tmp_path / "work"]
        words += ["--out", tmp_path / "lm", "--tokens-per-step", "512", "--threads", "1", *flags]
        path = os.pathsep.join([str(tmp_path), os.getcwd()])
        process = subprocess.Popen(
            [sys.executable, "-m", companions.MODULE, *map(str, words)],
            env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary")},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    begun = list[subprocess.Popen[str]]()
    yield begin
    for process in begun:
        process.kill()
        process.communicate()
    assert not list((tmp_path / "temporary").glob("specserve-*"))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.slow
def test_a_run_of_two_says_all_once(start, tmp_path):
    code, said = ended(start("--steps", "2", "--processes", "2"))
    assert code == 0, said
    assert said.count("chats: ") == said.count("exported step 2") == 1
    assert (tmp_path / "lm" / "model.safetensors").exists()


BEFALLS = [(_ENDS_AT_ONCE, "with code 9")]
if is_long():
    BEFALLS.append((_STOPS_AT_A_STEP, "RuntimeError: no memory left"))


@pytest.mark.slow
@pytest.mark.parametrize(("befalls", "problem"), BEFALLS)
def test_a_run_ends_with_what_befell_one_of_its_processes(befalls, problem, start):
    code, said = ended(start("--steps", "2", "--processes", "2", befalls=befalls))
    assert code == 1
    assert "specserve: process 1 of the training ended " in said
    assert said.rstrip().endswith(problem)


@pytest.mark.slow
def test_a_signal_stops_all_of_them_and_is_no_error(start, tmp_path):
    code, said = ended(start("--steps", "9", "--processes", "2", befalls=_IS_TOLD_TO_STOP))
    assert code == 130, said
    assert said.rstrip().endswith("stopped; the same command resumes")
    (folder,) = (tmp_path / "work" / "runs").iterdir()
    assert load(folder / FILE_NAME)[2].step == 3


def test_every_process_has_a_row_and_on_gpus_one_of_these(monkeypatch):
    def refused(**changes) -> str:
        given = {"processes": 2, "tokens_per_step": 2048, "device": "cpu", **changes}
        with pytest.raises(InvalidField) as problem:
            companions.refuse_crowd(argparse.Namespace(**given))
        return str(problem.value)

    companions.refuse_crowd(argparse.Namespace(processes=2, tokens_per_step=512, device="cpu"))
    assert refused(tokens_per_step=511).startswith("--processes: 2: a step of 511 tokens has 1 row")
    monkeypatch.setattr(companions.torch.cuda, "device_count", lambda: 1)
    assert refused(device="cuda") == "--processes: 2: have a GPU each, and there are 1"
    assert refused(device="cuda:1").startswith("--device: cuda:1: 2 processes have a GPU each")
