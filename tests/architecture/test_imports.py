"""Who may import whom: the contracts of pyproject.toml, and torch kept out of light processes."""

import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT


def test_import_contracts_hold():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as l; l()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "module", ["specserve.cli", "specserve.processes.launch", "specserve.api", "specserve.client"]
)
def test_light_processes_load_no_torch(module):
    assert not loads(module, "torch")


@pytest.mark.parametrize("module", ["specserve.processes.launch", "specserve.api.__main__"])
def test_whoever_makes_no_spans_loads_nothing_for_them(module):
    assert not loads(module, "opentelemetry")


def test_who_has_no_package_of_the_gateways_can_serve():
    assert not loads("specserve.api.__main__", "smg_grpc_proto")


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["target_node.start", "draft_node.start", "draft_node.training.__main__"]
    + [f"draft_node.training.{kind}_run" for kind in ("block", "language_model", "local_head")],
)
def test_who_compiles_nothing_loads_no_compiler(module):
    assert not loads(module, "torch._dynamo")


def loads(module: str, other: str) -> bool:
    """Whether importing `module` in a new process imports `other`."""
    program = f"import sys, {module}; print({other!r} in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return result.stdout.strip() == "True"
