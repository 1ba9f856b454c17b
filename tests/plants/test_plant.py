"""Where a plant finds the code that it breaks."""

from pathlib import Path

import pytest

from tests.plants.catalogue import PLANTS
from tests.plants.plant import Moved, Plant

ROOT = Path(__file__).resolve().parents[2]


def planted(root: Path, source: str, **changes: str) -> str:
    (root / "code.py").write_text(source)
    fields = {"symbol": "add", "was": "a + b", "becomes": "a - b", **changes}
    plant = Plant("one", "code.py", tests=(), breaks="", ways=frozenset(), **fields)
    return plant.applied(root)


def test_every_plant_finds_the_code_that_it_breaks():
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
    for plant in PLANTS:
        assert plant.applied(ROOT) != (ROOT / plant.file).read_text()


def test_a_function_is_found_though_its_name_is_bound_anew(tmp_path):
    source = "def add(a, b):\n    return a + b\n\n\nadd = compiled(add)\n"
    assert planted(tmp_path, source) == source.replace("a + b", "a - b")


@pytest.mark.parametrize(
    "source",
    [
        "def sub(a, b):\n    return a + b\n",
        "def add(a, b):\n    return b + a\n",
        "def add(a, b):\n    return a + b or a + b\n",
        "def add(a, b):\n    return a + b\n\n\ndef add(a, b):\n    return 0\n",
    ],
)
def test_what_is_not_there_once_has_moved(tmp_path, source):
    with pytest.raises(Moved, match="plant 'one'"):
        planted(tmp_path, source)
