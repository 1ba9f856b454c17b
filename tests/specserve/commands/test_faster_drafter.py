"""A launch says that another drafter was measured to be faster here, and when it says nothing."""

from pathlib import Path

import pytest

from specserve.commands.faster_drafter import faster_drafter_remark
from specserve.commands.launch import _Announcer
from specserve.processes.launch import resolve_here
from specserve.settings.config import Config, ModelConfig, SpeculationConfig, TopologyConfig
from specserve.settings.drafter_source import EMBEDDED_DRAFTERS, shipped_drafters
from specserve.settings.hardware import probe
from specserve.settings.speed_files import Asked, SpeedFile, SpeedRecord
from specserve.settings.target_source import find_smollm2

DEFAULT, OTHER = EMBEDDED_DRAFTERS / "lm", EMBEDDED_DRAFTERS / "dspark"
DRAWN = Asked(temperature=1.0, num_tokens=64, prompts="a")
GREEDY = Asked(temperature=0.0, num_tokens=64, prompts="a")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))


def wish_of(topology: str = "1+0", **speculation: object) -> Config:
    return Config(
        model=ModelConfig(target="tiny"),
        topology=TopologyConfig(topology=topology, device="cpu", oversubscribe=True),
        speculation=SpeculationConfig(**speculation),
    )


def keep(
    drafter: Path | str, figure: tuple[float, float, float], asked=DRAWN, head=None,
    topology="1+0", wish: Config | None = None,
) -> None:  # fmt: skip
    """As if `specserve calibrate` had measured it: value, low and high."""
    config = resolve_here(wish or wish_of(topology))
    head = None if head is None else str(head)
    file = SpeedFile(config, asked, probe(), drafter=str(drafter), local_head=head)
    value, low, high = figure
    file.write(
        SpeedRecord(
            made_for=file.made_for, drafter=file.drafter, local_head=file.local_head,
            asked=asked, num_pairs=12, value=value, low=low, high=high,
        )
    )  # fmt: skip


def remark(wish: Config | None = None) -> str | None:
    wish = wish or wish_of()
    return faster_drafter_remark(wish, resolve_here(wish))


def measured() -> None:
    """The default one, and another that is faster."""
    keep(DEFAULT, (1.2, 1.1, 1.3))
    keep(OTHER, (1.5, 1.4, 1.6))


@pytest.mark.parametrize("mode", ["auto", "sync"])
def test_the_line_has_both_figures_and_what_to_type(mode):
    measured()
    assert remark(wish_of(mode=mode)) == (
        "dspark was measured to be 1.50 [1.40, 1.60] times as fast here as plain decoding, the "
        "default drafter lm 1.20 [1.10, 1.30] times (specserve calibrate: one request, "
        "temperature 1); to draft with the faster one: --drafter dspark"
    )


def test_a_drafter_of_ones_own_is_named_by_its_folder_as_a_shell_takes_it(tmp_path):
    keep(DEFAULT, (1.2, 1.1, 1.3))
    keep(OTHER, (1.5, 1.4, 1.6))
    own = tmp_path / "my drafter"
    own.mkdir()
    (head := tmp_path / "head").mkdir()
    keep(own, (1.9, 1.8, 2.0), head=head)
    told = remark() or ""
    assert told.endswith(f"to draft with the faster one: --drafter '{own}' --local-head {head}")
    assert told.startswith(
        f"{own} and {head} was measured to be 1.90 [1.80, 2.00] times as fast here"
    )


def test_prompt_lookup_may_be_the_default_one(tmp_path, monkeypatch):
    """As it is for SmolLM2 on a CPU, from whatever folder it was measured."""
    target = find_smollm2()
    if target is None:
        pytest.skip("SmolLM2 is not installed")
    wish = Config(
        model=ModelConfig(target="smollm2"),
        topology=TopologyConfig(topology="1+0", device="cpu", oversubscribe=True),
        speculation=SpeculationConfig(mode="sync"),
    )
    keep("ngram", (1.2, 1.1, 1.3), wish=wish)
    monkeypatch.chdir(tmp_path)
    keep(shipped_drafters(target)["lm"], (1.5, 1.4, 1.6), wish=wish)
    told = remark(wish) or ""
    assert told.startswith("lm was measured to be 1.50 [1.40, 1.60] times as fast here as plain")
    assert "the default drafter ngram 1.20 [1.10, 1.30] times" in told
    assert told.endswith("--drafter lm")


def test_the_drafter_that_runs_stays_the_default_one():
    wish = wish_of()
    before = resolve_here(wish).speculation
    measured()
    assert resolve_here(wish).speculation == before


@pytest.mark.parametrize(
    "wish",
    [
        wish_of(drafter="lm"),
        wish_of(colocated_drafter="lm"),
        wish_of(mode="sync", drafter="ngram"),
        wish_of(mode="off"),
        wish_of(topology="1+1"),
        wish_of(gamma=3),  # of blocks that nobody has measured
    ],
)
def test_nothing_is_said_of_what_was_named_or_not_measured(wish):
    measured()
    keep(DEFAULT, (1.2, 1.1, 1.3), topology="1+1")
    keep(OTHER, (1.5, 1.4, 1.6), topology="1+1")
    assert remark() is not None
    assert remark(wish) is None


def test_without_a_figure_of_the_default_drafter_nothing_is_said():
    assert remark() is None
    keep(OTHER, (1.5, 1.4, 1.6))
    assert remark() is None
    keep(DEFAULT, (1.2, 1.1, 1.3), GREEDY)  # nor for other requests
    assert remark() is None


@pytest.mark.parametrize("other", [(1.5, 1.25, 1.6), (1.5, 1.3, 1.6), (1.0, 0.9, 1.05)])
def test_intervals_that_overlap_and_slower_drafters_say_nothing(other):
    keep(DEFAULT, (1.2, 1.1, 1.3))
    keep(OTHER, other)
    assert remark() is None


def test_a_drafter_that_is_slower_for_other_requests_is_not_praised():
    measured()
    keep(DEFAULT, (2.2, 2.1, 2.3), GREEDY)
    keep(OTHER, (2.15, 2.0, 2.2), GREEDY)
    assert "temperature 1" in (remark() or "")
    keep(OTHER, (1.8, 1.7, 1.9), GREEDY)
    assert remark() is None


def test_of_several_the_one_that_gains_most_is_told(tmp_path):
    measured()
    (own := tmp_path / "mine").mkdir()
    keep(own, (1.7, 1.65, 1.8))
    assert (remark() or "").endswith(f"--drafter {own}")


def test_a_launch_logs_it_once(caplog):
    measured()
    wish = wish_of()
    with caplog.at_level("INFO"):
        _Announcer(None, shows_all=False).resolved(wish, resolve_here(wish))
    told = [record for record in caplog.records if "the default drafter" in record.getMessage()]
    assert [record.levelname for record in told] == ["INFO"]
