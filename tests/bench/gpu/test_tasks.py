"""The steps that need no GPU to be wrong: forwards, blocks, limits, and what is refused."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.gpu import children, commands, drafts, steps
from bench.gpu.__main__ import is_whole, main
from bench.gpu.records import Draft, Fact, Left, Results, Step, Task, read_results, tables
from bench.gpu.scale import DRY, FULL, LLAMA_70B, QWEN_8B, QWEN_32B, Given, Grid
from bench.gpu.shapes import Shape, bytes_read
from bench.gpu.side_by_side import Found as Service
from bench.machine import describe_machine
from bench.processes import descendants
from tests.architecture.sources import ROOT

SHAPE = DRY.drafted_for[0]
LATER = float("inf")


def told(ends_s: float = LATER, **changes) -> Given:
    grid = Grid(SHAPE, rows=(2,), tokens=(1, 4), contexts=(16,))
    scale = replace(DRY, grids=(grid,), copied_bytes=1 << 20, **changes)
    return Given(scale, Path("nowhere"), "tiny", ends_s)


def test_forwards_are_timed_beside_their_floor():
    found = []
    steps.measure(told(), found.append)
    timed = [each for each in found if isinstance(each, Step)]
    assert [(each.rows, each.tokens, each.context) for each in timed] == [(2, 1, 16), (2, 4, 16)]
    for each in timed:
        assert 0 < each.host_s <= each.seconds
        assert each.floor_s > 0
    assert found[0].what == "a copy reads and writes"


def test_what_does_not_fit_is_said_and_the_rest_is_measured():
    found = []
    steps.measure(told(memory_share=0.0), found.append)
    left = [each for each in found if isinstance(each, Left)]
    assert [each.why for each in left] == ["there is memory for the contexts of 0 tokens"] * 2


def test_what_there_is_no_time_for_is_said():
    found = []
    steps.measure(told(ends_s=0.0), found.append)
    assert found[1:-1] == [Left(what="tiny on 1", why="no time was left")]
    assert found[-1].what == "torch on cpu"  # which computed


def test_blocks_are_timed_by_their_length_and_number():
    found = []
    drafts.measure(told(blocks=(1, 2)), found.append)
    assert [(each.gamma, each.blocks) for each in found] == [(3, 1), (3, 2)]
    assert all(isinstance(each, Draft) and each.seconds > 0 for each in found)


@pytest.mark.parametrize(
    ("config", "billions"), [(QWEN_8B, 8.19), (QWEN_32B, 32.76), (LLAMA_70B, 70.55)]
)
def test_shapes_have_as_many_parameters_as_is_published(config, billions):
    assert Shape("", config).spec.num_params / 1e9 == pytest.approx(billions, abs=0.005)


def test_four_shares_read_what_the_whole_does():
    """But for norms, which every rank has."""
    whole, share = (Shape("", QWEN_32B, devices=n).spec for n in (1, 4))
    assert 4 * bytes_read(share, 1000) == pytest.approx(bytes_read(whole, 1000), rel=1e-3)


def test_every_shape_of_a_device_can_be_dealt_and_drafted_for():
    for grid in FULL.grids:
        assert grid.shape.spec.num_heads % grid.shape.spec.num_kv_heads == 0
    for shape in FULL.drafted_for:
        layers = shape.block_config(7, 5)["target_layer_ids"]
        assert len(layers) == 5
        assert max(layers) < shape.config["num_hidden_layers"]


SLEEPER = "import time; time.sleep(60)"
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEPER!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_command_is_stopped_at_its_limit_and_no_process_of_it_is_left(monkeypatch):
    monkeypatch.setattr(children, "_GRACE_S", 0.2)
    heard: list[str] = []
    before = descendants()
    words = [sys.executable, "-S", "-c", STUBBORN]
    code = children.run(words, heard.append, time.monotonic() + 1.5)
    assert code is None
    (pid,) = map(int, heard)
    assert descendants() <= before
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # whoever adopts it may be slow to look


def test_a_command_that_ends_is_heard_to_its_last_line():
    heard: list[str] = []
    words = [sys.executable, "-S", "-c", "print('a'); print('b'); raise SystemExit(3)"]
    assert children.run(words, heard.append, time.monotonic() + 30) == 3
    assert heard == ["a", "b"]


def test_outcomes_of_tests_are_counted_by_file(monkeypatch):
    lines = [
        "tests/gpu/test_a.py::test_one PASSED      [ 10%]",
        "tests/gpu/test_a.py::test_two[PASSED b] FAILED [ 20%]",
        "tests/gpu/test_b.py::test_one SKIPPED (needs a CUDA device) [ 30%]",
        "FAILED tests/gpu/test_a.py::test_two[PASSED b] - assert 0",
    ]
    monkeypatch.setattr(commands, "_run", lambda _, hear, __: list(map(hear, lines)) and 1)
    found = []
    commands.tests(told(), found.append)
    assert found == [
        Left(what="tests/gpu/test_a.py::test_two[PASSED b]", why="failed"),
        Fact(what="tests/gpu/test_a.py", value=1, unit="passed"),
        Fact(what="tests/gpu/test_a.py", value=1, unit="failed"),
        Fact(what="tests/gpu/test_b.py", value=1, unit="skipped"),
    ]


def test_services_side_by_side_are_told_one_by_one(monkeypatch):
    plain = Service(name="plain", flags=[], tokens_per_s=50.0, forward_ms=3.0)
    turns = Service(name="by turns", flags=[], num_lookups=8, num_hits=2, num_draft_batches=3)
    lines = [
        "a line of a service",
        *(msgspec.json.encode(each).decode() for each in (plain, turns)),
        msgspec.json.encode(Service(name="side by side", flags=[], why_not="no MPS")).decode(),
    ]
    monkeypatch.setattr(commands, "_run", lambda _, hear, __: list(map(hear, lines)) and None)
    found = []
    commands.side_by_side(told(), found.append)
    assert Fact(what="side by side: plain", value=50.0, unit="tok/s") in found
    assert Fact(what="side by side: by turns", value=0.25, unit="of look-ups hit") in found
    assert [each for each in found if isinstance(each, Left)] == [
        Left(what="side by side: side by side", why="no MPS"),
        Left(what="side by side: beside the target", why="stopped at its limit"),
    ]


@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize(
    ("ended", "found"), [("stopped", []), ("done", [Left(what="a step", why="it is gone")])]
)
def test_a_dry_run_fails_where_a_step_was_left_out(is_dry, ended, found):
    """What it is for is to find that before there is a device."""
    results = Results(
        tasks=[Task(name="steps", limit_s=1.0, ended="done"), Task(name="real", limit_s=1.0)],
        is_dry=is_dry,
        driver="",
        libraries={},
        machine=describe_machine(),
        command="",
        limit_s=1.0,
    )
    results.tasks[1].ended = "done"
    assert is_whole(results)
    results.tasks[1].ended, results.tasks[1].found = ended, found
    assert is_whole(results) is not is_dry


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--dry", "--tasks", "nothing"], "--tasks: 'nothing' is none of tests, real, steps"),
        (["--dry", "--limit-s", "5"], "--limit-s: 5 is not from 20 to 3600 seconds; type"),
        (["--dry", "--target", "no/such/model/at all"], "model.target"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, problem, tmp_path, capsys):
    assert main(["--out", str(tmp_path), *words]) == 1
    assert problem in " ".join(capsys.readouterr().err.split())


def test_the_help_has_examples_and_tasks(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "python -m bench.gpu --out DIR --tasks steps drafts" in shown
    assert "blocks of DSpark shapes" in shown


@pytest.mark.slow
def test_the_script_of_a_device_runs_the_bench_and_ends_as_it_does(tmp_path):
    words = [ROOT / "bench/gpu/on_device.sh", "--dry", "--tasks", "nothing"]
    environment = {**os.environ, "OUT": str(tmp_path)}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=180)
    assert ended.returncode == 1
    assert f"results in {tmp_path}/gpu" in ended.stdout
    assert "--tasks: 'nothing' is none of" in " ".join(ended.stderr.split())
    assert "on_device.sh: line" not in ended.stderr  # of what there is nothing to pack


@pytest.mark.slow
def test_a_dry_run_leaves_results_that_are_read_back(tmp_path):
    assert main(["--dry", "--tasks", "drafts", "--out", str(tmp_path), "--limit-s", "60"]) == 0
    found = read_results(tmp_path / "results.json", "--parts")
    (task,) = found.tasks
    assert (task.name, task.ended, found.is_dry) == ("drafts", "done", True)
    assert [each.blocks for each in found.drafts()] == list(DRY.blocks)
    assert found.machine.commit
    assert json.loads((tmp_path / "results.json").read_text())["driver"] == found.driver
    report = (tmp_path / "report.md").read_text()
    assert all(table.title in report for table in tables(found))
    assert "No figure counts" in report
