"""A launch says that the target alone was measured to be faster, and when it says nothing."""

import pytest

from specserve.commands.device_remark import device_remark
from specserve.commands.launch import _Announcer
from specserve.processes.launch import resolve_here
from specserve.settings import hardware
from specserve.settings.config import Config, ModelConfig, SpeculationConfig, TopologyConfig
from specserve.settings.draft_files import DraftFile, DraftRecord
from specserve.settings.step_files import StepCell, StepFile, StepRecord
from specserve.types import DraftTime

OWN = TopologyConfig(topology="1+1", device="cpu")
BOTH_CORES = TopologyConfig(topology="1+0", device="cpu", threads=2)
TWO_RANKS = TopologyConfig(topology="2+0", device="cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))


def wish_of(topology: TopologyConfig = OWN, mode: str = "auto") -> Config:
    return Config(
        model=ModelConfig(target="tiny"),
        topology=topology,
        speculation=SpeculationConfig(mode=mode),
    )


def keep_forwards(topology: TopologyConfig, ms: float) -> None:
    """As if a service had measured that a forward of six tokens takes so long."""
    file = StepFile(resolve_here(wish_of(topology)), hardware.probe())
    cells = [StepCell(n, ms / 1000 * n / 6, 8) for n in (4, 8)]
    file.write(StepRecord(made_for=file.made_for, cells=cells, row_s=0.0, key_s=0.0))


def keep_drafts(ms: float) -> None:
    """... and of a block of five."""
    config = resolve_here(wish_of())
    file = DraftFile(config, config.speculation, "draft", hardware.probe())
    times = [DraftTime(1, 0.0, ms / 5000), DraftTime(16, 0.0, ms / 2500)]
    file.write(DraftRecord(made_for=file.made_for, times=times, enter_s=0.0))


def remark(wish: Config | None = None) -> str | None:
    wish = wish or wish_of()
    return device_remark(wish, resolve_here(wish))


def measured(forward_ms=20.0, both_ms=12.0, draft_ms=2.0) -> None:
    keep_forwards(OWN, forward_ms)
    keep_forwards(BOTH_CORES, both_ms)
    keep_drafts(draft_ms)


@pytest.mark.parametrize("mode", ["auto", "async"])
def test_the_line_has_what_was_measured_and_what_to_type(mode):
    measured()  # rounds of 2 + 12 ms against 20 at best
    assert remark(wish_of(mode=mode)) == (
        "one request was measured to be served faster by the target alone: its forward takes "
        "12 ms with --topology 1+0 --threads 2 and 20 ms with 1+1, and drafting 2 ms, so that "
        "draft processes make 0.70 times the tokens at most; to use them all in the target: "
        "--topology 1+0 --threads 2 --speculation sync"
    )


def test_of_several_ways_to_split_the_target_the_fastest_is_told():
    measured()
    keep_forwards(TWO_RANKS, 11.0)
    assert (remark() or "").endswith("in the target: --topology 2+0 --speculation sync")
    keep_forwards(TWO_RANKS, 13.0)
    assert (remark() or "").endswith("--topology 1+0 --threads 2 --speculation sync")


@pytest.mark.parametrize(
    "times",
    [
        {"draft_ms": 9.0},  # drafting takes long beside the target
        {"both_ms": 19.0},  # the target gains little
        {"both_ms": 18.0, "draft_ms": 1.5},  # 2.5 %: within what times are known by
    ],
)
def test_where_drafting_may_be_faster_nothing_is_said(times):
    measured(**times)
    assert remark() is None


def test_what_was_not_measured_is_not_guessed():
    assert remark() is None
    keep_forwards(OWN, 20.0)
    keep_drafts(2.0)
    assert remark() is None
    keep_forwards(BOTH_CORES, 12.0)
    assert remark() is not None


def test_a_record_of_another_machine_says_nothing(monkeypatch):
    measured()
    other = StepFile(resolve_here(wish_of(BOTH_CORES)), hardware.probe())
    other.path.write_bytes(other.path.read_bytes().replace(b" cores", b" knots"))
    assert remark() is None


@pytest.mark.parametrize(
    "wish",
    [
        wish_of(TopologyConfig(topology="1+0", device="cpu")),
        wish_of(TopologyConfig(topology="1+1", device="cpu", oversubscribe=True)),
    ],
)
def test_without_draft_processes_on_devices_of_their_own_nothing_is_said(wish):
    measured()
    assert remark(wish) is None


def test_a_launch_logs_it_once_and_files_that_are_only_looked_at_say_nothing(caplog):
    measured()
    wish = wish_of()
    with caplog.at_level("INFO"):
        _Announcer(None, shows_all=False).resolved(wish, resolve_here(wish))
    told = [each.getMessage() for each in caplog.records]
    assert sum("by the target alone" in line for line in told) == 1
    assert not any("timed again" in line for line in told)
