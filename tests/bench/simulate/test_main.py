"""The command writes results, a report and plots that belong together."""

import msgspec
import pytest

from bench.simulate import __main__ as command
from bench.simulate.measure import Size, auto_over_best, measure
from bench.simulate.page import NAMES, blocks_of, check_page, renew_page, renewed
from bench.simulate.plots import draw
from bench.simulate.report import heading, tables, verdict
from bench.simulate.results import Load, Results
from tests.architecture.sources import ROOT

PAGE, RESULTS = ROOT / "docs/scaling.md", ROOT / "bench/results/simulate/results.json"
TINY = Size(40, 40, 4, (1, 16), (1,), 1, 40, (0.1,), (1.5,))
MOST_BYTES = 60_000  # of a plot that is committed


@pytest.fixture(scope="module")
def results() -> Results:
    told: list[str] = []
    found = measure(TINY, "python -m bench.simulate", told.append)
    assert len(told) == TINY.num_steps
    return found


@pytest.mark.slow
def test_the_report_has_every_part_and_marks_what_is_predicted(results, tmp_path):
    plots = draw(results, tmp_path)
    text = "\n\n".join([*heading(results), *(table.markdown() for table in tables(results, plots))])
    for title in ("SSD's table", "figure 6, left (predicted)", "Our own measurements",
                  "figure 8", "Confidences", "4+1 (predicted)", "share one draft process",
                  "One more device"):  # fmt: skip
        assert title in text
    assert {path.name for path in tmp_path.iterdir()} == set(plots.values())
    assert all(f"![{name}]({name})" in text for name in plots.values())
    assert all(path.stat().st_size < MOST_BYTES for path in tmp_path.iterdir())


@pytest.mark.slow
def test_results_are_read_back_as_they_were_written(results):
    encoded = msgspec.json.encode(results)
    assert msgspec.json.decode(encoded, type=Results) == results
    assert results.summary["paper_rows"] == 8
    assert "SSD's table: 8 of 8 within 15%" in verdict(results)


@pytest.mark.slow
def test_a_page_is_renewed_between_its_marks(results, tmp_path):
    assert set(blocks_of(results)) == set(NAMES)
    page = tmp_path / "page.md"
    begins, ends = "before\n<!-- simulated: published -->\n", "<!-- end -->\nbehind\n"
    page.write_text(begins + "| old |\n" + ends)
    check_page(page)
    renew_page(page, blocks_of(results))
    text = page.read_text()
    assert text.startswith(begins)
    assert text.endswith(ends)
    assert "old" not in text
    assert f"| {results.published[0].data_set} |" in text
    renew_page(page, blocks_of(results))
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no mark", "has no mark such as"),
        ("<!-- simulated: nothing -->\n<!-- end -->", "nothing is called 'nothing'"),
        (None, "is no file"),
    ],
)
def test_a_page_that_cannot_be_renewed_is_refused_before_anything_is_simulated(
    text, told, tmp_path, capsys
):
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    assert command.main(["--quick", "--out", str(tmp_path / "out"), "--page", str(page)]) == 1
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_page_about_scaling_has_the_figures_of_the_results_that_are_kept():
    kept = RESULTS.read_bytes()
    found = msgspec.json.decode(kept, type=Results)
    text = PAGE.read_text(encoding="utf-8")
    assert renewed(text, blocks_of(found)) == text
    assert text.count("<!-- simulated: ") >= 6


def load(arm: str, tokens_per_s: float, system: str = "a", num_at_once: int = 1) -> Load:
    return Load(
        system=system, topology="", num_at_once=num_at_once, arm=arm, tokens_per_s=tokens_per_s,
        over_off=1.0, verify_budget=1.0, accept_len=1.0, hit_rate=0.0, busy=0.0, shares={},
    )  # fmt: skip


def test_auto_is_held_against_the_best_on_its_devices_at_its_worst_load():
    loads = [
        load("off, 4+0", 100), load("sync, 4+0", 200), load("sync, 5+0", 900),
        load("async, 4+1", 160), load("auto, 4+1", 180),
        load("off, 4+0", 10, num_at_once=2), load("auto, 4+1", 10, num_at_once=2),
    ]  # fmt: skip
    assert auto_over_best(loads) == pytest.approx(0.9)


def test_a_folder_that_is_a_file_is_refused_before_anything_is_simulated(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert command.main(["--quick", "--out", str(tmp_path / "taken")]) == 1
    assert "--out" in capsys.readouterr().err


def test_the_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    told = capsys.readouterr().out
    assert "python -m bench.simulate --quick --out" in told
