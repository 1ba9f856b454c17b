"""What drafts take is kept for the next process that drafts, and brought to its pace."""

from pathlib import Path

import msgspec
import pytest

from specserve.drafters.draft_times import DraftTimes, at_pace, recall
from specserve.settings.config import Config, SpeculationConfig, TopologyConfig
from specserve.settings.draft_files import DraftFile, DraftRecord, forget_all
from specserve.types import DraftTime
from tests.scripted_time import ScriptedTime
from tests.specserve.settings.resolving import MACHINE, resolved

CHAIN = DraftTimes([DraftTime(1, 0.01, 0.02), DraftTime(4, 0.02, 0.03)], enter_s=0.004)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(role: str = "draft", topology: str = "1+1", **wishes) -> DraftFile:
    speculation = SpeculationConfig(mode="async", drafter="lm", **wishes)
    config = resolved(
        Config(
            topology=TopologyConfig(topology=topology, oversubscribe=True), speculation=speculation
        )
    )
    return DraftFile(config, config.speculation, role, MACHINE)


class Measuring:
    """Counts, and says the same every time."""

    def __init__(self) -> None:
        self.told: list[DraftTimes | None] = []

    def __call__(self, *, known: DraftTimes | None) -> DraftTimes:
        self.told.append(known)
        return known or CHAIN


def test_what_one_process_measures_the_next_is_told():
    measuring = Measuring()
    first, second = (recall(file_of(), measuring) for _ in range(2))
    assert measuring.told[0] is None
    assert measuring.told[1] is not None
    assert first.all == second.all == CHAIN.all
    assert second.enter_s == CHAIN.enter_s


def test_nothing_is_kept_of_a_drafter_that_nobody_could_time(folder):
    recall(file_of(), lambda *, known: DraftTimes())
    assert not folder.exists()


def test_other_blocks_processes_and_topologies_are_timed_apart():
    files = [
        file_of(),
        file_of("target"),
        file_of(gamma=3),
        file_of(draft_threads=2),
        file_of(topology="1+2"),
    ]
    assert len({file.path for file in files}) == len(files)


@pytest.mark.parametrize("times", [[], [DraftTime(1, 0.1, 0.0)]])
def test_a_file_that_says_nothing_is_measured_again(times, caplog):
    file = file_of()
    record = DraftRecord(made_for=file.made_for, times=times, enter_s=0.0)
    file.write(record if times else msgspec.structs.replace(record, times=[]))
    assert (file_of().read() is None) is (not times)
    assert ("of no use, drafts are timed again" in caplog.text) is (not times)


def test_a_start_that_was_disturbed_is_not_believed_for_ever(monkeypatch):
    """Its largest size took four times as long as it usually does."""
    clock = ScriptedTime()
    monkeypatch.setattr("specserve.drafters.draft_times.time", clock)

    def draft(num_blocks: int, num_tokens: int) -> None:
        clock.now_s += CHAIN.seconds(num_blocks, num_tokens) / (4 if num_blocks > 1 else 1)

    assert at_pace(CHAIN, draft, [1, 4]) is None
    assert at_pace(CHAIN, draft, [1, 16]) is None  # of other sizes
    again = DraftTimes([DraftTime(1, 0.01, 0.02), DraftTime(4, 0.01, 0.01)])
    recall(file_of(), lambda *, known: CHAIN)
    recall(file_of(), lambda *, known: again)
    record = file_of().read()
    assert record is not None
    assert record.times == again.all


def test_what_is_forgotten_is_measured_anew():
    recall(file_of(), Measuring())
    forget_all()
    forget_all()
    assert file_of().read() is None


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_one_size_tells_the_pace_of_all(factor, monkeypatch):
    monkeypatch.setattr(
        "specserve.drafters.draft_times.shortest", lambda call: factor * CHAIN.seconds(*call.args)
    )
    clock = ScriptedTime()
    monkeypatch.setattr("specserve.drafters.draft_times.time", clock)

    def draft(num_blocks: int, num_tokens: int) -> None:
        clock.now_s += factor * CHAIN.seconds(num_blocks, num_tokens)

    now = at_pace(CHAIN, draft, [1, 4])
    assert now is not None
    assert now.seconds(4, 3) == pytest.approx(factor * CHAIN.seconds(4, 3))
    assert now.enter_s == pytest.approx(factor * CHAIN.enter_s)


def test_sizes_between_are_called_once_before_anybody_waits_for_them(monkeypatch):
    """A device may have to prepare for each."""
    clock = ScriptedTime()
    monkeypatch.setattr("specserve.drafters.draft_times.time", clock)
    known = DraftTimes([DraftTime(size, 0.01, 0.02) for size in (1, 4, 8, 16)])
    called: list[int] = []

    def draft(num_blocks: int, num_tokens: int) -> None:
        called.append(num_blocks)
        clock.now_s += known.seconds(num_blocks, num_tokens)

    assert at_pace(known, draft, [1, 4, 8, 16]) is not None
    assert [called.count(size) for size in (4, 8, 16)] == [1, 1, 1]
