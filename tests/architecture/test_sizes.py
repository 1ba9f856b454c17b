"""Files and functions stay small enough to read in one sitting."""

import ast

from tests.architecture.sources import ROOT, parse, source_files

MIN_FILE_LINES, MAX_FILE_LINES = 40, 400
MAX_FUNCTION_LINES = 60
SHAPELESS_NAMES = {"utils", "helpers", "common", "core", "misc"}


def over_budget(source: str, tree: ast.Module) -> list[str]:
    """What of a module is too long to be read in one sitting."""
    num_lines = len(source.splitlines())
    found = [f"{num_lines} lines"] if num_lines > MAX_FILE_LINES else []
    return found + [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def test_file_and_function_budgets():
    found = {
        str(path.relative_to(ROOT)): over_budget(path.read_text(encoding="utf-8"), parse(path))
        for path in source_files()
    }
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_what_is_over_budget_is_found():
    def found(source: str) -> list[str]:
        return over_budget(source, ast.parse(source))

    lines = "    pass\n" * MAX_FUNCTION_LINES
    assert found("x = 1\n" * MAX_FILE_LINES) == []
    assert found("x = 1\n" * (MAX_FILE_LINES + 1)) == [f"{MAX_FILE_LINES + 1} lines"]
    assert found(f"def f():\n{lines[9:]}") == []
    assert found(f"def f():\n{lines}") == [f"f: {MAX_FUNCTION_LINES + 1} lines"]


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


def test_no_module_is_too_small_to_be_one():
    """But interfaces, which other modules implement, and entry points."""
    small = {
        str(path.relative_to(ROOT)): path
        for path in source_files()
        if path.name not in ("__init__.py", "__main__.py")
        and len(path.read_text(encoding="utf-8").splitlines()) < MIN_FILE_LINES
    }
    interfaces = {name for name, path in small.items() if is_interface(parse(path))}
    assert set(small) - interfaces == set()


def is_interface(tree: ast.Module) -> bool:
    """Whether every class of a module is a protocol, and there is nothing else to call."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return (
        bool(classes)
        and not functions
        and all("Protocol" in map(ast.unparse, node.bases) for node in classes)
    )


def test_what_is_an_interface():
    def found(source: str) -> bool:
        return is_interface(ast.parse(source))

    assert found("class A(Protocol):\n    def f(self): ...")
    assert not found("class A:\n    pass")
    assert not found("class A(Protocol):\n    pass\n\ndef f(): ...")
    assert not found("X = 1")
