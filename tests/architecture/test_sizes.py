"""Files and functions stay small enough to read in one sitting."""

import ast

import pytest

from tests.architecture.sources import ROOT, parse, source_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SHAPELESS_NAMES = {"utils", "helpers", "common", "core", "misc"}


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_file_and_function_budgets(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert num_lines <= MAX_FILE_LINES
    long_functions = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long_functions == []


def test_no_module_is_named_for_nothing():
    parts = {
        part for path in source_files() for part in path.relative_to(ROOT).with_suffix("").parts
    }
    assert parts & SHAPELESS_NAMES == set()


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(parse(path))
    ]
    assert silent == []
