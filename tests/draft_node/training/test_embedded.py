"""The command that makes the embedded target, where it refuses to begin."""

import fcntl
from pathlib import Path

import pytest

from draft_node.training.embedded import main
from draft_node.training.run_folder import LOCK


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path, capsys):
    with (tmp_path / LOCK).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["--work", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    problem = f"specserve: --work: {tmp_path}: another run into it is under way"
    assert capsys.readouterr().err.startswith(problem)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("flag", ["--minutes", "--decay-minutes", "--threads", "--tokens-per-step"])
def test_a_senseless_number_is_named(flag: str, tmp_path: Path, capsys):
    with pytest.raises(SystemExit):
        main(["--work", str(tmp_path), flag, "-1"])
    assert f"argument {flag}: " in capsys.readouterr().err
