"""docs/architecture.md names every folder of the product, and nothing that is not there."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, parse

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PRODUCT = ("specserve", "target_node", "draft_node", "bench")


def named(text: str) -> set[str]:
    """Everything in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def folders() -> set[str]:
    """Those of the product that hold modules."""
    found = {path.parent for name in PRODUCT for path in (ROOT / name).rglob("*.py")}
    return {f"{path.relative_to(ROOT)}/" for path in found}


def has(tree: ast.AST, names: list[str]) -> bool:
    """Whether classes and functions of these names lie one within the other."""
    if not names:
        return True
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.iter_child_nodes(tree) if isinstance(node, kinds)]
    return any(has(node, names[1:]) for node in nodes if node.name == names[0])


def exists(call: str) -> bool:
    """Whether `package.module.Class.method` does."""
    parts = call.split(".")
    for size in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:size]).with_suffix(".py")
        if path.is_file():
            return has(parse(path), parts[size:])
    return False


def test_every_folder_is_named():
    assert folders() - named(MAP) == set()


def test_every_path_that_is_named_is_there():
    paths = {name for name in named(MAP) if "/" in name}
    assert len(paths) > 30
    assert {name for name in paths if not (ROOT / name).exists()} == set()


def test_every_call_that_is_named_is_there():
    calls = {name for name in named(MAP) if re.fullmatch(r"(\w+\.){2,}\w+", name)}
    assert len(calls) > 10
    assert {call for call in calls if not exists(call)} == set()


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", MAP)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.parametrize("call", ["target_node.node.TargetNode.spin", "target_node.knot.turn"])
def test_what_is_not_there_is_found(call):
    assert not exists(call)
    assert not (ROOT / Path("specserve/knots/")).exists()
