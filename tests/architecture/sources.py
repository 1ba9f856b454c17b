"""The project's own Python files, as the architecture tests see them."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("specserve", "target_node", "draft_node", "bench")


def source_files() -> list[Path]:
    """Hand-written modules; generated stubs are nobody's style."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(path for path in files if "grpc_gen" not in path.parts)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
