"""What `specserve draft` goes by, and what services say of draft nodes from elsewhere."""

import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from specserve import cli
from specserve.commands import draft
from specserve.commands.config_table import config_rows
from specserve.errors import InvalidField, Unsupported
from specserve.processes import launch
from specserve.processes.launch import plan_children
from specserve.processes.supervised_events import Ending
from specserve.settings.agreement import agreed_with_drafts, difference
from specserve.settings.config import (
    Config,
    EngineConfig,
    ResolvedConfig,
    SpeculationConfig,
    TopologyConfig,
    load_config,
)
from specserve.settings.draft_node import (
    MOST_TARGETS,
    as_launched,
    parse_targets,
    resolve_draft_node,
)
from specserve.settings.hardware import probe
from specserve.settings.hosts import check_hosts, require_draft_address
from specserve.settings.resolve import cpu_weight_bytes, resolve
from tests.specserve.settings.resolving import DEVICES, FOLDER, MACHINE, SPEC, resolved

PLACE, OTHER = "127.0.0.1:7500", "127.0.0.1:7501"
SERVED = Config(
    topology=TopologyConfig(topology="2+2", draft_address=PLACE),
    speculation=SpeculationConfig(mode="async"),
)


def draft_node(hardware=MACHINE, **settings: str) -> ResolvedConfig:
    wish = load_config(None, {key.replace("__", "."): value for key, value in settings.items()})
    launched = resolve(as_launched(wish, hardware), hardware, SPEC, FOLDER)
    return resolve_draft_node(wish, launched, hardware, (PLACE, OTHER))


def test_a_service_starts_none_of_the_drafts_that_attach_to_it():
    config = resolved(SERVED, replace(MACHINE, cores=(0, 1)))  # which its own would not fit on
    assert [each.role for each in plan_children(config)] == ["target", "target", "api"]
    assert (config.far_drafts, config.num_draft_processes) == ((0, 1), 2)
    assert not config.oversubscribed
    assert config_rows(config)["place.draft.1"] == f"elsewhere, attaches at {PLACE}"


def test_gpus_are_counted_without_them():
    config = resolved(SERVED, replace(MACHINE, cuda_devices=DEVICES))
    assert config.topology.device == "cuda"
    assert [p.device for p in config.own_placements if p.role == "target"] == ["cuda:0", "cuda:1"]


def test_an_address_without_drafts_is_refused():
    with pytest.raises(InvalidField, match=r"type --topology 2\+1 for one"):
        resolved(Config(topology=TopologyConfig(topology="2+0", draft_address=PLACE)))


def test_an_address_of_a_launch_over_several_machines_is_refused():
    wish = TopologyConfig(nnodes=2, rendezvous=PLACE, draft_address=OTHER)
    with pytest.raises(InvalidField, match=r"topology\.draft_address: is for a launch on one"):
        check_hosts(wish)


@pytest.mark.parametrize(
    ("place", "problem"),
    [("nowhere", "is not of the form HOST:PORT"), ("0.0.0.0:7500", "is every address"),
     ("192.0.2.1:7500", "can be reached by others")],
)  # fmt: skip
def test_a_place_that_is_none_or_a_strangers_too_is_refused(place: str, problem: str):
    with pytest.raises(InvalidField, match=rf"topology\.draft_address: .*{problem}"):
        require_draft_address(TopologyConfig(draft_address=place))
    with pytest.raises(InvalidField, match=rf"--attach-to: .*{problem}"):
        parse_targets(f"{PLACE},{place}", is_private=False)


def test_a_port_that_is_in_use_is_refused_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidField, match=f"cannot listen on {place}: Address already in"):
            require_draft_address(TopologyConfig(draft_address=place))
    require_draft_address(TopologyConfig(draft_address=place))


def test_targets_are_read_in_order_and_once():
    assert parse_targets(f"{OTHER}, {PLACE}", is_private=False) == (OTHER, PLACE)
    assert parse_targets("192.0.2.1:7500", is_private=True) == ("192.0.2.1:7500",)
    with pytest.raises(InvalidField, match=f"{PLACE} is there twice"):
        parse_targets(f"{PLACE},{PLACE}", is_private=False)
    with pytest.raises(InvalidField, match=r"127\.1:7500 is there twice \(as 127\.0\.0\.1:7500\)"):
        parse_targets(f"{PLACE},127.1:7500", is_private=False)
    many = ",".join(f"127.0.0.1:{7500 + number}" for number in range(MOST_TARGETS + 1))
    with pytest.raises(InvalidField, match=f"the limit is {MOST_TARGETS}"):
        parse_targets(many, is_private=False)


def test_a_draft_node_is_one_process_and_nothing_else():
    config = draft_node(speculation__draft_threads="2")
    (command,) = plan_children(config)
    assert (command.role, command.rank) == ("draft", 0)
    assert config.placement("draft").cores == (0, 1)
    assert config.targets == (PLACE, OTHER)
    assert config.speculation.mode == "async"
    assert config.num_blocks


def test_a_draft_node_takes_a_gpu_where_there_is_one():
    config = draft_node(replace(MACHINE, cuda_devices=DEVICES[:1]))
    assert (config.placement("draft").device, config.oversubscribed) == ("cuda:0", False)
    assert config.topology.mps is False


def test_a_draft_node_that_does_not_fit_says_so():
    with pytest.raises(Unsupported, match="needs 5 cores"):
        draft_node(speculation__draft_threads="5")
    shared = draft_node(speculation__draft_threads="5", topology__oversubscribe="true")
    assert shared.placement("draft").cores == ()


def test_a_draft_node_needs_no_memory_for_weights_that_it_does_not_load():
    weights = cpu_weight_bytes(SPEC, resolved().model, 1)
    small = replace(MACHINE, available_memory=weights)
    config = replace(as_launched(Config(), small), engine=EngineConfig(kv_memory="1MiB"))
    with pytest.raises(Unsupported, match="memory: weights of"):
        resolve(config, small, SPEC, FOLDER)
    assert resolve(config, small, SPEC, FOLDER, has_ranks=False).num_blocks
    huge = replace(config, engine=EngineConfig(kv_memory="9000TiB"))
    with pytest.raises(Unsupported, match="KV pools, with draft contexts, of 9000"):
        resolve(huge, small, SPEC, FOLDER, has_ranks=False)


def test_the_command_asks_for_none(monkeypatch):
    monkeypatch.setattr(launch, "probe", lambda: replace(probe(), available_memory=8 << 20))
    monkeypatch.setattr(draft, "setup_logging", lambda *_: None)
    started: list[ResolvedConfig] = []
    monkeypatch.setattr(draft, "launch", lambda config, **_: started.append(config) or Ending(0))
    words = ["draft", "--attach-to", PLACE, "--target", "tiny", "--oversubscribe"]
    assert cli.main([*words, "--kv-memory", "800KiB", "--device", "cpu"]) == 0
    (config,) = started
    assert config.targets == (PLACE,)


def test_what_both_go_by_is_told_apart_by_name(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    wish = SpeculationConfig(drafter="ngram")
    ours = agreed_with_drafts(folder, wish, feature_size=0, gamma=4)
    assert difference(ours, dict(ours), "here", "there") is None
    longer = agreed_with_drafts(folder, wish, feature_size=0, gamma=5)
    problem = str(difference(ours, longer, "here", "there"))
    assert problem.startswith("speculation.gamma: 5 on there, 4 on here")
    (folder / "config.json").write_text("{ }")
    other = agreed_with_drafts(folder, wish, feature_size=0, gamma=4)
    assert str(difference(ours, other, "here", "there")).startswith("model.target: the files on")
    wider = agreed_with_drafts(folder, wish, feature_size=8, gamma=4)
    assert "feature_size: 8 on there, 0 on here" in str(difference(other, wider, "here", "there"))
    assert "specserve: none is installed" in str(difference(ours, {}, "here", "there"))
