"""The site has every page once, in the order of docs/README.md, and is built without a warning."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.raised import ROOT

DOCS = ROOT / "docs"
CONFIGURATION = DOCS / "site" / "properdocs.yml"
SITE: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")


def pages(entries: Any) -> list[str]:
    """Of the navigation, in order."""
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries
    return [page for entry in values for page in pages(entry)]


def test_every_page_is_in_the_order_once():
    ordered = pages(SITE["nav"])
    found = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert set(ordered) == {page for page in found if not page.startswith("decisions/")}
    assert len(ordered) == len(set(ordered))


def test_the_order_is_that_of_the_index():
    numbered = re.findall(r"^\d+\. \[[^]]*\]\(([^)]+)\)", INDEX, re.MULTILINE)
    own = [page for page in numbered if not page.startswith((".", "decisions"))]
    assert pages(SITE["nav"]) == ["README.md", *own]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", INDEX, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_decisions_are_reached_from_the_index():
    """They are no part of the order: the table of the index leads to each."""
    assert SITE["not_in_nav"].split() == ["decisions/*"]
    linked = set(re.findall(r"\(decisions/([^)]+\.md)\)", INDEX))
    assert linked == {path.name for path in (DOCS / "decisions").glob("*.md")}


def test_titles_are_those_of_the_pages():
    titled = {
        page: title
        for entry in SITE["nav"]
        for part in entry.values()
        if isinstance(part, list)
        for each in part
        for title, page in each.items()
    }
    for page, title in titled.items():
        heading = (DOCS / page).read_text(encoding="utf-8").partition("\n")[0]
        assert heading.startswith(f"# {title}"), page


def test_what_makes_it_can_be_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = " ".join(extras["optional-dependencies"]["docs"])
    assert "properdocs" in required
    assert f"properdocs-theme-{SITE['theme']['name']}" in required
    assert set(extras["optional-dependencies"]["docs"]) <= set(
        extras["optional-dependencies"]["dev"]
    )
    assert (
        f"pip install '.[docs]'`, then `properdocs serve -f {CONFIGURATION.relative_to(ROOT)}`"
        in INDEX
    )


@pytest.mark.skipif(find_spec("properdocs") is None, reason="needs pip install '.[docs]'")
def test_it_is_built_and_nothing_in_it_leads_nowhere(tmp_path: Path):
    assert SITE["validation"]["anchors"] == "warn"  # which --strict makes an error
    words = ["build", "--strict", "--quiet", "-f", str(CONFIGURATION), "-d", str(tmp_path)]
    built = subprocess.run(
        [sys.executable, "-m", "properdocs", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")}
    assert {"index.html", "quick-start.html", "deploy/index.html"} <= made
    assert not (tmp_path / "site").exists()
    assert (tmp_path / "images" / "rounds.svg").is_file()


def test_pictures_are_small():
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert sizes["rounds.svg"] < 8_000
    assert all(size < 100_000 for size in sizes.values())
