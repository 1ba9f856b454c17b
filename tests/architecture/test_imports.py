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
    "module", ["specserve.cli", "specserve.launch", "specserve.api", "specserve.client"]
)
def test_light_processes_load_no_torch(module):
    program = f"import sys, {module}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
