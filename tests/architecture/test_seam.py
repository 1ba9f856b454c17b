"""Who may name a kind of device, and who may know how many graphs there are: backends alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, parse

KINDS = {"cpu", "cuda", "mps", "xpu", "hip"}
MAY = (
    "specserve/backends/",
    "specserve/settings/",
    "specserve/transport/group_link/nccl.py",
    "specserve/commands/",  # the words of flags
    "draft_node/training/",  # is no part of the service
    "draft_node/calibration/",
)


def named(tree: ast.AST) -> Iterator[int]:
    """Lines that compare with a kind of device, or ask a tensor for it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            values = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if KINDS & values:
                yield node.lineno
        if isinstance(node, ast.Attribute):
            is_type = node.attr == "type" and "device" in ast.unparse(node.value)
            if is_type or node.attr in ("is_cuda", "is_cpu", "is_mps"):
                yield node.lineno


def product() -> Iterator[Path]:
    for package in ("specserve", "target_node", "draft_node"):
        yield from (ROOT / package).rglob("*.py")


def test_only_backends_and_settings_name_a_kind_of_device():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in product()
        if not str(path.relative_to(ROOT)).startswith(MAY)
        for line in named(parse(path))
    }
    assert found == set()


def test_such_lines_are_found():
    for line in ("x = device.type", "if a == 'cuda': pass", "t.is_cuda", "d.device.type in kinds"):
        assert list(named(ast.parse(line))) == [1]
    assert not list(named(ast.parse("kind = type(device); y = {'cpu': 3}")))


def test_whoever_needs_a_backend_is_given_one():
    """`choose_backend` is called where processes start, by whoever has no process of its own."""
    callers = {
        str(path.relative_to(ROOT))
        for path in product()
        if "choose_backend(" in path.read_text(encoding="utf-8")
    }
    assert callers == {
        "specserve/backends/__main__.py",
        "specserve/backends/choose.py",
        "target_node/start.py",
        "draft_node/start.py",
        "draft_node/calibration/run.py",
        "draft_node/training/frozen_target.py",
        "draft_node/training/local_head_fusion.py",
    }
