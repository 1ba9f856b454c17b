"""No flags against a grid of them: which services, what is compared, and the whole bench once."""

import json
import subprocess
import sys

import pytest

from bench.flag_grid import cells
from bench.flag_grid.__main__ import build_parser, main, read_plan
from bench.flag_grid.cells import BY_HAND, KNOWN, NO_FLAGS, cells_of, fresh
from bench.flag_grid.measure import Load, Measured
from bench.flag_grid.results import against_best, speeds_of
from specserve.errors import InvalidField
from specserve.types import DRAFT_BATCH_SIZE

ALONE = Load(0.0, 1)


def measured(cell: str, number: int, speed: float, *, is_first: bool = False) -> Measured:
    return Measured(
        cell=cell,
        load=ALONE,
        is_first=is_first,
        number=number,
        tokens=[50, 100],
        seconds=[50 / speed, 100 / speed],
    )


def test_cells_are_drawn_by_their_seed_alone():
    first, again, other = cells_of(12, 0), cells_of(12, 0), cells_of(12, 1)
    assert first == again != other
    assert first[0].name == NO_FLAGS
    assert first[0].flags == ()
    assert KNOWN in first
    assert len({cell.name for cell in first}) == len(first) == 16
    assert cells_of(3, 0) == first[:7]


@pytest.mark.parametrize("batch", [None, 1, 4, DRAFT_BATCH_SIZE])
def test_processes_that_are_started_for_a_cell_draft_as_many_at_once(batch, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    code = "from draft_node.prespeculation.draft_batches import BatchSettings as B; print(B().size)"
    with fresh(batch):
        words = [sys.executable, "-c", code]
        found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert int(found) == (batch or DRAFT_BATCH_SIZE)


def test_the_best_is_picked_in_one_pass_and_compared_in_the_other():
    """Each of two was lucky once: what is compared is what it made without luck."""
    found = [measured(NO_FLAGS, n, 40) for n in (0, 1)]
    found += [measured("a", 0, 60), measured("a", 1, 40)]
    found += [measured("b", 0, 40), measured("b", 1, 60)]
    (one,) = against_best(found)
    assert one.best == ["a", "b"]
    assert one.over_best.value == pytest.approx(1.0)


def test_what_was_measured_once_is_compared_where_it_was_picked():
    found = [measured(NO_FLAGS, 0, 38, is_first=True), measured("a", 0, 40, is_first=True)]
    (one,) = against_best(found)
    assert one.is_first
    assert one.over_best.value == pytest.approx(0.95)


def test_a_pass_that_was_cut_short_is_left_out():
    found = [measured(NO_FLAGS, 0, 40), measured("a", 0, 60), measured("a", 1, 40)]
    assert against_best(found) == []
    assert [(s.cell, round(s.tokens_per_s.value)) for s in speeds_of(found)] == [
        (NO_FLAGS, 40),
        ("a", 48),
    ]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--passes", "0"], "--passes"),
        (["--cells", "-1"], "--cells"),
        (["--requests", "1", "0"], "--requests"),
        (["--temperatures", "-1"], "--temperatures"),
        (["--max-tokens", "1"], "--max-tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, field):
    with pytest.raises(InvalidField, match=field):
        read_plan(build_parser().parse_args(words))


@pytest.mark.slow
def test_a_minimal_run_compares_every_service_under_every_load(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cells, "BY_HAND", BY_HAND[:1])  # of the services that are alike one is left
    words = ["--quick", "--unpinned", "--target", "tiny", "--ballast", "none", "--cells", "0"]
    words += ["--requests", "1", "2", "--temperatures", "0", "--num-prompts", "2"]
    assert main([*words, "--max-tokens", "8", "--passes", "2", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["is_complete"]
    names = [cell.name for cell in cells_of(0, 0)]
    assert len(names) == 3
    assert list(results["flags"]) == names
    loads = {(each["load"]["num_requests"], each["is_first"]) for each in results["speeds"]}
    assert loads == {(1, True), (1, False), (2, False)}
    assert {each["cell"] for each in results["speeds"]} == set(names)
    assert len(results["against"]) == 3
    report = (tmp_path / "report.md").read_text()
    for name in names:
        assert f"| {name} |" in report
    assert "of the best (" in capfd.readouterr().out
