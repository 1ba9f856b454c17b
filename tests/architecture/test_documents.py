"""Documents lead somewhere: links, paths and modules exist, pages and results are named.

Commands that they show are in `tests/docs`.
"""

import re
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
RESULTS = ROOT / "bench" / "results"
MAX_LINES = {"README.md": 120, "bench/LOG.md": 150, "docs/architecture.md": 150}
# What holds now; entries of bench/log and reports say what was, and keep the paths of then.
CURRENT = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "bench/README.md", "bench/LOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def documents() -> list[Path]:
    """Every page of the project's own folders."""
    folders = (*PACKAGES, "docs", "proto", "tests")
    pages = [page for folder in folders for page in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *pages])


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lost_links(text: str, folder: Path) -> list[str]:
    """Relative links that lead nowhere from a page in `folder`: no file, or no such heading."""
    return [link for link in LINK.findall(FENCE.sub("", text)) if not leads(link, folder)]


def leads(link: str, folder: Path) -> bool:
    if re.match(r"[a-z]+:", link):
        return True  # another site
    path, _, heading = link.partition("#")
    page = folder / path if path else folder
    return page.exists() and (not heading or heading in headings(page))


def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def lost_paths(text: str) -> list[str]:
    """Paths of the tree, from its root, that a page names and that are not there."""
    tops = "|".join((*PACKAGES, "docs", "tests"))
    quoted = [name for name in IN_BACKTICKS.findall(text) if re.match(rf"({tops})/[\w./-]+$", name)]
    return [name for name in quoted if not (ROOT / name).exists()]


def lost_entries(text: str, titles: list[str]) -> list[str]:
    """Sources such as (11-26 later, H100) that are no words of any entry's title."""
    sources = re.findall(r"\((\d\d-\d\d[^()]*)\)", text)
    entries = [entry for source in sources for entry in source.split("; ")]
    titles = [title.lower() for title in titles]
    return [
        entry
        for entry in entries
        if not any(
            all(w.lower() in title for w in re.findall(r"[\w-]+", entry)) for title in titles
        )
    ]


def modules(text: str) -> set[str]:
    """What `python -m` is told."""
    found = {name.rstrip(".") for name in re.findall(r"python -m ([\w.]+)", text)}
    return {name for name in found if name.islower() and name not in {"pytest", "pip"}}


def is_runnable(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__main__.py").is_file() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("page", documents(), ids=named)
def test_every_relative_link_leads_somewhere(page):
    assert lost_links(page.read_text(encoding="utf-8"), page.parent) == []


@pytest.mark.parametrize("page", CURRENT, ids=named)
def test_every_path_that_is_named_is_there(page):
    assert lost_paths(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", CURRENT, ids=named)
def test_every_module_that_is_to_be_run_is_there(page):
    found = modules(page.read_text(encoding="utf-8"))
    assert {module for module in found if not is_runnable(module)} == set()


@pytest.mark.parametrize("name", MAX_LINES)
def test_pages_stay_short(name):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= MAX_LINES[name]


def test_every_decision_and_page_is_in_the_index():
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    linked = {(docs / link).resolve() for link in LINK.findall(index) if ":" not in link}
    assert [named(page) for page in CURRENT if page.parent != ROOT and page not in linked] == [
        "docs/README.md"
    ]


def test_every_decision_that_is_referred_to_is_there():
    numbers = {page.name[:4] for page in (ROOT / "docs" / "decisions").glob("*.md")}
    text = "\n".join(page.read_text(encoding="utf-8") for page in CURRENT)
    referred = set(re.findall(r"[(\[](00\d\d)[)\],]|decision (00\d\d)", text))
    assert {number for pair in referred for number in pair if number} <= numbers


def test_every_result_is_named_by_what_is_known():
    """A report that neither bench/LOG.md nor the GPU's notes quote is stale: it leaves the tree."""
    log = (ROOT / "bench" / "LOG.md").read_text(encoding="utf-8")
    notes = (RESULTS / "gpu" / "NOTES.md").read_text(encoding="utf-8")
    reports = [str(page.parent.relative_to(RESULTS)) for page in RESULTS.rglob("report.md")]
    assert reports
    assert [name for name in reports if f"{name}/report.md" not in log and name not in notes] == []


def test_every_entry_that_is_known_from_is_there():
    pages = [*(ROOT / "bench" / "log").glob("*.md"), RESULTS / "gpu" / "NOTES.md"]
    titles = [
        title
        for page in pages
        for title in re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    log = (ROOT / "bench" / "LOG.md").read_text(encoding="utf-8")
    assert log.count("(11-") > 20
    assert lost_entries(log, titles) == []


def test_every_plot_is_shown_by_its_report():
    hidden = [
        named(plot)
        for plot in RESULTS.rglob("*.png")
        if plot.name not in (plot.parent / "report.md").read_text(encoding="utf-8")
    ]
    assert hidden == []


def test_what_leads_nowhere_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A title, of sorts\n")
    text = (
        "[a](there.md) [b](gone.md) [c](there.md#a-title-of-sorts) [d](there.md#no) [e](http://x)"
    )
    assert lost_links(text, tmp_path) == ["gone.md", "there.md#no"]
    assert lost_paths("`specserve/cli.py` `specserve/gone.py` `bench/gone/`") == [
        "specserve/gone.py",
        "bench/gone/",
    ]
    assert lost_entries(
        "a (11-26 later, H100). (11-27; 11-28 gone)", ["2026-11-26, later: an H100"]
    ) == [
        "11-27",
        "11-28 gone",
    ]
    assert modules("`python -m bench.gone --quick`, python -m bench.NAME") == {"bench.gone"}
    assert not is_runnable("bench.gone")
