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
    """Lines that compare with a kind of device, ask a tensor for it, or use its module of torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            values = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if KINDS & values:
                yield node.lineno
        if isinstance(node, ast.Attribute):
            is_type = node.attr == "type" and "device" in ast.unparse(node.value)
            is_module = node.attr in KINDS and ast.unparse(node.value) in (
                "torch",
                "torch.backends",
            )
            if is_type or is_module or node.attr in ("is_cuda", "is_cpu", "is_mps"):
                yield node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom) and KINDS & set(imported(node)):
            yield node.lineno


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Modules of torch, and what is taken from it, by their names below it."""
    of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    for name in (of + alias.name for alias in node.names):
        package, _, below = name.partition(".")
        if package == "torch":
            yield below.removeprefix("backends.").partition(".")[0]


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
    for line in (
        "x = device.type", "if a == 'cuda': pass", "t.is_cuda", "d.device.type in kinds",
        "torch.cuda.is_available()", "torch.cuda.Stream(device)", "torch.backends.mps.is_built()",
        "import torch.cuda", "from torch import cuda", "from torch.cuda import is_available",
    ):  # fmt: skip
        assert list(named(ast.parse(line))) == [1], line
    for line in ("kind = type(device); y = {'cpu': 3}", "import torch; from torch import Tensor"):
        assert not list(named(ast.parse(line))), line


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
