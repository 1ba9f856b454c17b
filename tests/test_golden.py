"""The command that compares with reference cases says how it is used."""

import pytest

from tests.golden import main


@pytest.mark.parametrize(
    ("words", "exit_code"), [(["--help"], 0), (["-h"], 0), ([], 2), (["--x"], 2), (["a", "b"], 2)]
)
def test_whoever_asks_or_errs_gets_a_usage_line(words, exit_code, capsys):
    assert main(words) == exit_code
    told, complained = capsys.readouterr()
    assert (complained if exit_code else told) == "usage: python -m tests.golden DIR\n"
    assert (told if exit_code else complained) == ""
