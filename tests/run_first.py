"""Code that processes of a service run before their own: what no setting is there for."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


def run_first(
    monkeypatch: pytest.MonkeyPatch, folder: Path, modules: Sequence[str], code: str
) -> None:
    """Have every `python -m MODULE` of `modules` that starts from now on run `code` first.

    It stands in `folder`, and may import tests.
    """
    lines = ["import sys", f"if not {set(modules)}.isdisjoint(sys.orig_argv):"]
    lines += [f"    {line}" for line in code.splitlines()]
    (folder / "sitecustomize.py").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (folder, _ROOT))))
