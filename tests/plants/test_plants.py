"""The planted bugs find the code that they break, and the tool tells what became of each."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import long_runs
from tests.plants import workshop
from tests.plants.__main__ import REPORT, ROOT, main
from tests.plants.catalogue import PLANTS
from tests.plants.plant import Moved, Plant, Way
from tests.plants.verdict import Found, judge, unsound
from tests.plants.workshop import run_tests

SHIPPED = ("draft_node", "specserve", "target_node")


# --- the catalogue ---------------------------------------------------------------------------


def test_there_are_forty_of_all_ways_with_names_of_their_own():
    assert len(PLANTS) >= 40
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
    assert {way for plant in PLANTS for way in plant.ways} == set(Way)
    codes = {(plant.file, ast.dump(ast.parse(plant.applied(ROOT)))) for plant in PLANTS}
    assert len(codes) == len(PLANTS)  # else two are one


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_its_code_and_its_tests_are_there(plant):
    """If not: give the plant the code's new place, or another bug of the same kind."""
    assert plant.applied(ROOT) != (ROOT / plant.file).read_text(encoding="utf-8")
    assert plant.file.split("/")[0] in SHIPPED
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", plant.name)
    assert plant.tests
    assert plant.breaks
    for test in plant.tests:
        file, _, function = test.partition("::")
        names = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert not function or function.partition("[")[0].split("::")[-1] in names, test


# --- a bug and its code ----------------------------------------------------------------------

SOURCE = '''\
LIMIT = 3


class Shop:
    """Sells."""

    @property
    def price(self):
        total = 1
        if total:
            total += 1
            total += 2
        return total

    def tax(self):
        def half(x):
            return x / 2

        return half(self.price)


def price():
    return 1
'''
TEST = (
    "from pkg.shop import LIMIT, Shop, price\n\n\ndef test_price():\n    assert Shop().price == 4\n"
)
OTHER_TEST = "from pkg.shop import Shop\n\n\ndef test_tax():\n    assert Shop().tax() == 2\n"


@pytest.fixture
def tree(tmp_path) -> Path:
    root = tmp_path / "root"
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/shop.py": SOURCE,
        "tests/test_shop.py": TEST,
        "tests/test_tax.py": OTHER_TEST,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\nmarkers = ['slow', 'gpu', 'multigpu']\n"
    )
    return root


def plant(symbol="Shop.price", was="return total", becomes="return total + 1", **fields) -> Plant:
    fields = {"tests": ("tests/test_shop.py::test_price",), "file": "pkg/shop.py"} | fields
    return Plant(
        "a-name", fields.pop("file"), symbol, was, becomes, breaks="", ways=frozenset(), **fields
    )


def edited(plant: Plant, tree: Path) -> list[str]:
    """The lines that only one of both has."""
    before, after = SOURCE.splitlines(), plant.applied(tree).splitlines()
    return [line.strip() for line in after if line not in before]


def test_a_piece_of_a_line_is_replaced_within_its_symbol_alone(tree):
    assert edited(plant(), tree) == ["return total + 1"]
    assert edited(plant("price", "return 1", "return 2"), tree) == ["return 2"]
    assert edited(plant("Shop.tax.half", "x / 2", "x / 3"), tree) == ["return x / 3"]
    assert edited(plant("LIMIT", "3", "4"), tree) == ["LIMIT = 4"]


def test_whole_lines_keep_the_indentation_they_are_found_at(tree):
    found = plant(was="total += 1\ntotal += 2", becomes="total += 2\nif total:\n    total += 5")
    expected = SOURCE.replace(
        "            total += 1\n            total += 2\n",
        "            total += 2\n            if total:\n                total += 5\n",
    )
    assert found.applied(tree) == expected


def test_a_function_is_found_though_its_name_is_bound_anew(tree):
    source = f"{SOURCE}\n\nprice = compiled(price)\n"
    (tree / "pkg/shop.py").write_text(source)
    found = plant("price", "return 1", "return 2").applied(tree)
    assert found == source.replace("return 1", "return 2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"file": "pkg/stall.py"}, "there is no file pkg/stall.py"),
        ({"symbol": "Shop.cost"}, "0 symbols Shop.cost, not one"),
        ({"was": "return 7"}, "0 times, not once: 'return 7'"),
        ({"was": "total"}, "5 times, not once"),
        ({"was": "total += 1\ntotal += 3"}, "0 times, not once"),
        ({"becomes": "return ("}, "does not parse"),
    ],
)
def test_code_that_has_moved_is_told_of(tree, fields, message):
    with pytest.raises(Moved, match=re.escape(message)):
        plant(**fields).applied(tree)


# --- what becomes of it ----------------------------------------------------------------------


@pytest.mark.slow
def test_verdicts(tree):
    caught = judge(plant(), tree)
    assert (caught.found, caught.by) == (Found.BY_ITS_TESTS, "tests/test_shop.py::test_price")
    others = judge(plant("Shop.tax.half", "x / 2", "x / 3"), tree)
    assert (others.found, others.by) == (Found.BY_OTHERS, "tests/test_tax.py::test_tax")
    assert judge(plant("price", "return 1", "return 2"), tree).found is Found.NEVER
    assert judge(plant(was="return tax"), tree).found is Found.MOVED
    assert judge(plant("LIMIT", "LIMIT", "LEAST"), tree).found is Found.BROKEN
    crashed = judge(plant(was="return total", becomes="return totals"), tree)
    assert crashed.found is Found.BROKEN  # nobody has judged anything
    nothing = judge(plant(tests=("tests/test_shop.py::test_cost",)), tree)
    assert nothing.found is Found.BROKEN
    assert "not found" in nothing.by
    assert (tree / "pkg/shop.py").read_text() == SOURCE


@pytest.mark.slow
def test_a_run_that_is_killed_is_not_the_one_before(tree, monkeypatch):
    assert run_tests(tree, ["tests/test_shop.py"]).is_clean
    (tree / "tests/test_shop.py").write_text("def test_price():\n    while True:\n        pass\n")
    monkeypatch.setattr(workshop, "TIMEOUT_S", 3.0)
    assert not run_tests(tree, ["tests/test_shop.py"]).is_clean


@pytest.mark.slow
def test_every_test_that_a_plant_names_is_there():
    """Those of a parameter included."""
    tests = sorted({test for plant in PLANTS for test in plant.tests})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *tests]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]


def test_what_catches_a_plant_is_not_left_to_long_runs():
    tests = [test for plant in PLANTS for test in plant.tests]
    assert long_runs.named(tests, long_runs.lines()) == set()


@pytest.mark.slow
def test_tests_that_fail_without_the_bug_are_told_of(tree):
    assert unsound([plant()], tree) == {}
    (tree / "tests/test_shop.py").write_text(TEST.replace("4", "5"))
    assert "tests/test_shop.py::test_price" in unsound([plant()], tree)["a-name"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--only", "pushed-draft-probs-of-place-1"],
            "'pushed-draft-probs-of-place-1'; pushed-draft-probs-of-place-0?",
        ),
        (["--file", "specserve/none.py"], "no plant breaks 'specserve/none.py'"),
        (["--file", "./specserve/noize.py"], "'specserve/noize.py'; specserve/noise.py?"),
        (["--jobs", "0"], "--jobs: 0 is below 1"),
    ],
)
def test_names_that_are_none_are_refused(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_report_is_of_the_plants_there_are():
    """If not: `python -m tests.plants` writes it anew."""
    rows = re.findall(r"^\| ([a-z0-9-]+) \|", REPORT.read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if row != "plant"] == [plant.name for plant in PLANTS]


@pytest.mark.slow
def test_a_plant_of_the_catalogue_is_caught(capsys):
    assert main(["--only", "pushed-draft-probs-of-place-0", "--trust"]) == 0
    assert "1 of 1 caught by their tests" in capsys.readouterr().out
