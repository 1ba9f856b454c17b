"""What drafts take is kept for the next process that drafts, and brought to its pace."""

import os
from pathlib import Path

import msgspec
import pytest

from specserve.drafters.draft_times import DraftTimes, at_pace, recall
from specserve.settings.config import Config, ResolvedConfig, SpeculationConfig, TopologyConfig
from specserve.settings.draft_files import DraftFile, DraftRecord, forget_all
from specserve.types import DraftTime
from tests.scripted_time import ScriptedTime
from tests.specserve.settings.resolving import MACHINE, resolved

CHAIN = DraftTimes([DraftTime(1, 0.01, 0.02), DraftTime(4, 0.02, 0.03)], enter_s=0.004)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def config_of(topology: str = "1+1", **wishes) -> ResolvedConfig:
    speculation = SpeculationConfig(mode="async", drafter="lm", **wishes)
    return resolved(
        Config(
            topology=TopologyConfig(topology=topology, oversubscribe=True), speculation=speculation
        )
    )


def file_of(role: str = "draft", topology: str = "1+1", **wishes) -> DraftFile:
    config = config_of(topology, **wishes)
    return DraftFile(config, config.speculation, role, MACHINE)


def file_after(section: str, hardware=MACHINE, **changes) -> DraftFile:
    """Of a configuration that is another in some fields of one section, or of all ("")."""
    config, replace = config_of(), msgspec.structs.replace
    if section:
        changes = {section: replace(getattr(config, section), **changes)}
    config = replace(config, **changes)
    return DraftFile(config, config.speculation, "draft", hardware)


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


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("model", {"target": "/models/another"}),
        ("model", {"dtype": "bfloat16"}),
        ("speculation", {"drafter": "another"}),
        ("speculation", {"local_head": "head"}),
        ("speculation", {"min_survival": 0.3}),
        ("engine", {"deterministic": False}),
        ("engine", {"cuda_graphs": True}),
        ("", {"oversubscribed": True}),
    ],
    ids=str,
)
def test_what_makes_drafts_others_has_a_file_of_its_own(section, changes):
    recall(file_of(), Measuring())
    assert file_after("").read() is not None
    assert file_after(section, **changes).path != file_of().path
    assert file_after(section, **changes).read() is None


@pytest.mark.parametrize(
    ("section", "changes", "what"),
    [
        ("engine", {"max_batch_rows": 2}, "limits"),
        ("model", {"max_model_len": 64}, "limits"),
        ("", {"hardware": msgspec.structs.replace(MACHINE, cpu_name="another")}, "hardware"),
    ],
    ids=str,
)
def test_what_was_measured_within_other_limits_or_elsewhere_is_of_no_use(
    section, changes, what, caplog
):
    recall(file_of(), Measuring())
    caplog.set_level("INFO")
    file = file_after(section, **changes)
    assert file.path == file_of().path
    assert file.read() is None
    assert f"what has changed is {what}" in caplog.text


@pytest.mark.parametrize("changed", ["target", "drafter", "head"])
def test_another_model_of_the_same_name_is_timed_anew(changed, tmp_path, caplog):
    names = ("target", "drafter", "head")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(name)
    target, drafter, head = (str(tmp_path / name) for name in names)

    def file() -> DraftFile:
        config, replace = config_of(), msgspec.structs.replace
        config = replace(config, model=replace(config.model, target=target))
        speculation = replace(config.speculation, drafter=drafter, local_head=head)
        return DraftFile(config, speculation, "draft", MACHINE)

    recall(file(), Measuring())
    assert file().read() is not None
    os.utime(tmp_path / changed / "model.safetensors", (1, 1))
    caplog.set_level("INFO")
    assert file().read() is None
    assert "what has changed is models' files" in caplog.text


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
