"""`specserve train` as a user meets it: signals and exit code pass to and from the training."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draft_node.training.__main__ import KINDS, main
from specserve.commands import train
from tests.draft_node.training.drafters import TEXT, write_target


@pytest.fixture
def command(tmp_path):
    """The words of a command that trains for a small target until it is stopped."""
    write_target(tmp_path / "target")
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    words = [sys.executable, "-m", "specserve", "train", "dspark", "--threads", "1"]
    words += ["--target", str(tmp_path / "target"), "--text", str(tmp_path / "text.txt")]
    words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    return [*words, "--self-text", "0", "--gamma", "3", "--rank", "4", "--anchors", "8"]


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)


def await_training(pid: int) -> str:
    """The child of a training command, once it trains: from then on it catches SIGTERM."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.1)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            lines = Path("/proc", child, "status").read_text().splitlines()
            caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
            if int(caught, 16) >> (signal.SIGTERM - 1) & 1:
                return child
    raise AssertionError("no training after two minutes")


def test_every_kind_that_is_offered_can_be_trained():
    assert tuple(KINDS) == train.KINDS


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_saves_and_resumes(number, command, tmp_path):
    process = subprocess.Popen([*command, "--minutes", "60"], stderr=subprocess.PIPE, text=True)
    await_training(process.pid)
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 130, log
    assert "the same command resumes" in log
    assert list((tmp_path / "work" / "runs").glob("dspark-out-*/checkpoint.safetensors"))
    if number != signal.SIGINT:
        return  # what is resumed is the same

    ended = run(*command, "--minutes", "0.02")
    assert ended.returncode == 0, ended.stderr
    assert "resuming at step" in ended.stderr
    assert json.loads((tmp_path / "out" / "config.json").read_text())["markov_rank"] == 4


@pytest.mark.slow
def test_a_second_training_into_a_folder_is_refused_while_the_first_lives(command, capsys):
    first = subprocess.Popen([*command, "--minutes", "60"], stderr=subprocess.DEVNULL)
    child = await_training(first.pid)
    # In this process: to start another takes seconds.
    assert main([*command[4:], "--minutes", "0.02", "--restart"]) == 2
    refused = capsys.readouterr().err.splitlines()[-1]
    assert "--out" in refused
    assert "another run into it is under way" in refused
    os.kill(int(child), signal.SIGKILL)  # which leaves no time to let go of anything
    first.wait()
    ended = run(*command, "--minutes", "0.02", "--restart")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_training_does_not_outlive_its_command(command):
    process = subprocess.Popen([*command, "--minutes", "60"], stderr=subprocess.DEVNULL)
    child = await_training(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while Path("/proc", child).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path("/proc", child).exists()


@pytest.mark.slow
def test_usage_errors_of_the_training_are_the_commands(command):
    ended = run(*command, "--minutes", "never")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("specserve: argument --minutes: 'never' is not a positive")


def test_help_of_a_kind_shows_its_flags_and_examples():
    ended = run(sys.executable, "-m", "specserve", "train", "dspark", "--help")
    assert ended.returncode == 0
    assert "--max-gap" in ended.stdout
    assert "examples:\n  specserve train dspark" in ended.stdout
    assert "usage: specserve train dspark" in ended.stdout


@pytest.mark.slow
def test_an_eagle3_is_trained_for_a_number_of_steps(command, tmp_path):
    start, end = command.index("dspark"), command.index("--rank")
    words = [*command[:start], "eagle3", *command[start + 1 : end], "--anchors", "8"]
    ended = run(*words, "--steps", "2", "--tokens-per-step", "256")
    assert ended.returncode == 0, ended.stderr
    assert "exported step 2" in ended.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["architectures"], config["ttt_length"]) == (["Qwen3Eagle3Model"], 3)


def test_steps_that_are_none_are_refused_in_one_line(command):
    ended = run(*command, "--steps", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("specserve: argument --steps: '0' is not a positive whole number")


def test_the_kinds_are_shown_by_example():
    ended = run(sys.executable, "-m", "specserve", "train", "--help")
    assert ended.returncode == 0
    assert all(f"specserve train {kind} " in ended.stdout for kind in train.KINDS)
    assert "--steps" in ended.stdout


def test_the_kind_is_asked_for():
    ended = run(sys.executable, "-m", "specserve", "train", "dspork")
    assert ended.returncode == 2
    assert "kind" in ended.stderr
