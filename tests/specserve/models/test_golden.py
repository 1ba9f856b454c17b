import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.backends.torch.backend import TorchBackend
from tests import golden_case
from tests.backends.chosen import BACKEND, CPU
from tests.golden import FIXTURES, NotACase, find_target, main, run_case

TARGETS = ("target_qwen3_tied", "target_qwen3_untied", "target_llama3_untied_ropescaled")


@pytest.mark.parametrize("backend", [BACKEND, TorchBackend(CPU)], ids=lambda each: each.name)
@pytest.mark.parametrize("name", TARGETS)
def test_every_tensor_of_the_reference_is_reproduced(name, backend, monkeypatch):
    monkeypatch.setattr(golden_case, "BACKEND", backend)
    comparisons = run_case(FIXTURES / name)

    assert [item for item in comparisons if not item.passed] == []
    assert len(comparisons) == len(load_file(FIXTURES / name / "io.safetensors")) - 1  # prompt_ids


def test_a_planted_error_fails_the_case(tmp_path, capsys):
    case = shutil.copytree(FIXTURES / TARGETS[0], tmp_path / "case")
    tensors = load_file(case / "io.safetensors")
    tensors["hidden_states.3"][5, 7] += 1e-3
    tensors["greedy_next_ids"][0] ^= 1
    tensors["invented"] = torch.zeros(2)
    save_file(tensors, case / "io.safetensors")

    assert main([str(case)]) == 1
    failed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert failed == ["hidden_states.3", "greedy_next_ids", "invented"]


@pytest.mark.parametrize("is_training", [False, True])
def test_a_damaged_case_is_one_line(tmp_path, capsys, is_training):
    case = shutil.copytree(FIXTURES / TARGETS[0], tmp_path / "case")
    if is_training:
        (case / "config.json").unlink()
    whole = (case / "io.safetensors").read_bytes()
    (case / "io.safetensors").write_bytes(whole[: len(whole) // 2])
    assert main([str(case)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{case / 'io.safetensors'}: cannot be read: ")


@pytest.mark.slow
def test_the_command_line_prints_errors_and_exits_zero():
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", str(FIXTURES / TARGETS[0])],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=FIXTURES.parents[2],
    )

    assert done.returncode == 0, done.stderr
    assert "logits" in done.stdout


def test_an_unknown_kind_of_case_exits_with_two(tmp_path, capsys):
    case = shutil.copytree(FIXTURES / TARGETS[0], tmp_path / "case")
    (case / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))

    assert main([str(case)]) == 2
    assert "MambaForCausalLM" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "config.json is missing" in capsys.readouterr().err


def test_a_draft_case_finds_its_target_beside_it_before_the_fixtures(tmp_path):
    case = tmp_path / "draft"
    case.mkdir()
    tensors = {"x": torch.zeros(1)}
    save_file(tensors, case / "io.safetensors", metadata={"target": TARGETS[0]})
    assert find_target(case) == FIXTURES / TARGETS[0]

    beside = shutil.copytree(FIXTURES / TARGETS[0], tmp_path / TARGETS[0])
    assert find_target(case) == beside

    save_file(tensors, case / "io.safetensors", metadata={"target": "nowhere"})
    with pytest.raises(NotACase, match="nowhere"):
        find_target(case)
