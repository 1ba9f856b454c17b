"""Rows are complete, their tests exist, and the page is what rows and figures make."""

import ast
from pathlib import Path

from tests.architecture.sources import ROOT
from tests.reliability.page import PAGE, render
from tests.reliability.rows import ROWS


def functions(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_row_is_there_once():
    assert [row.number for row in ROWS] == list(range(1, 31))


def test_every_test_that_is_named_exists():
    named = {tuple(test.split("::")) for row in ROWS for test in row.tests}
    assert len(named) > 50
    missing = [(path, name) for path, name in named if name not in functions(ROOT / path)]
    assert missing == []


def test_every_row_has_a_test():
    assert all(row.tests for row in ROWS)


def test_the_page_is_made_of_rows_and_figures():
    assert PAGE.read_text(encoding="utf-8") == render()
