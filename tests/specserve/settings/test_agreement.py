"""What has to be the same on every machine: told by the name of the setting, and what to type."""

from pathlib import Path

import msgspec
import pytest

from specserve.errors import InvalidField
from specserve.settings import agreement
from specserve.settings.agreement import agreed_on, missing_hosts, objection
from specserve.settings.config import Config, ModelConfig, SpeculationConfig, TopologyConfig
from specserve.settings.hosts import HostFacts
from tests.specserve.settings.resolving import MACHINE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "model", b"weights")


def written(folder: Path, weights: bytes) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def facts(rank: int, config: Config, folder: Path, device: str = "cpu") -> HostFacts:
    agreed = agreed_on(config, folder, device)
    return HostFacts(node_rank=rank, address=f"10.0.0.{rank + 1}", hardware=MACHINE, agreed=agreed)


def config_of(**topology) -> Config:
    return Config(topology=TopologyConfig(**{"nnodes": 2, "rendezvous": "h:1"} | topology))


def test_what_is_a_machines_own_affair_may_differ(folder: Path, tmp_path: Path):
    copy = written(tmp_path / "copy", b"weights")
    (copy / "README.md").write_text("moved")
    config = config_of()
    other = msgspec.structs.replace(
        config_of(node_rank=1, rendezvous="10.0.0.1:1", private_network=True, node_timeout_s=9.0),
        model=ModelConfig(target=str(copy)),
        server=msgspec.structs.replace(config.server, grpc_port=0),
        telemetry=msgspec.structs.replace(config.telemetry, log_level="debug"),
    )
    assert objection(facts(0, config, folder), facts(1, other, copy)) is None


@pytest.mark.parametrize(
    ("other", "field", "told"),
    [
        (config_of(nnodes=3), "topology.nnodes", "3 on node 1 (10.0.0.2), 2 on node 0 (10.0.0.1)"),
        (config_of(spread="1+0,0+1"), "topology.spread", "1+0,0+1 on node 1 (10.0.0.2), not set"),
        (config_of(topology="2+0"), "topology.topology", "with --set topology.topology=VALUE"),
        (
            msgspec.structs.replace(config_of(), model=ModelConfig(dtype="float16")),
            "model.dtype",
            "float16 on node 1 (10.0.0.2), not set on node 0 (10.0.0.1); start both with the same",
        ),
        (
            msgspec.structs.replace(config_of(), speculation=SpeculationConfig(drafter="ngram")),
            "speculation.drafter",
            "ngram on node 1",
        ),
    ],
)
def test_a_setting_that_differs_is_named(folder: Path, other: Config, field: str, told: str):
    found = objection(facts(0, config_of(), folder), facts(1, other, folder))
    assert isinstance(found, InvalidField)
    assert found.field == field
    assert told in found.problem


def test_what_strangers_say_stays_on_one_short_line(folder: Path):
    own, other = (facts(rank, config_of(), folder) for rank in (0, 1))
    for key in ("specserve", "topology.topology"):
        said = msgspec.structs.replace(other, agreed=other.agreed | {key: "\x1b[2J\n" * 1000})
        found = objection(own, said)
        assert found is not None
        assert found.field == key
        assert found.problem.isprintable()
        assert len(found.problem) < 600


def test_another_device_is_told(folder: Path):
    found = objection(facts(0, config_of(), folder, "cuda"), facts(1, config_of(), folder))
    assert found is not None
    assert found.field == "topology.device"


@pytest.mark.parametrize("size", [100, 3000])
def test_another_model_is_told_whatever_its_name(tmp_path: Path, size: int, monkeypatch):
    monkeypatch.setattr(agreement, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(agreement, "_PIECE_BYTES", 400)
    ours = written(tmp_path / "a", bytes(size))
    theirs = written(tmp_path / "b", bytes(size - 1) + b"\1")
    found = objection(facts(0, config_of(), ours), facts(1, config_of(), theirs))
    assert found is not None
    assert str(found).startswith("model.target: the files on node 1 (10.0.0.2) are not those on ")
    assert "copy the folder or file, or name the same one" in found.problem
    shorter = written(tmp_path / "c", bytes(size - 1))
    assert objection(facts(0, config_of(), ours), facts(1, config_of(), shorter)) is not None


def test_a_file_alone_may_have_any_name(tmp_path: Path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    found = [facts(rank, config_of(), tmp_path / f"{name}.gguf") for rank, name in enumerate("ab")]
    assert objection(*found) is None


def test_another_version_is_told(folder: Path):
    other = facts(1, config_of(), folder)
    for package in ("specserve", "torch"):
        older = msgspec.structs.replace(other, agreed={**other.agreed, package: "0.0.1"})
        found = objection(facts(0, config_of(), folder), older)
        assert found is not None
        assert str(found).startswith(f"{package}: 0.0.1 is installed on node 1 (10.0.0.2), ")
        assert "install the same on both" in found.problem


def test_one_that_knows_other_settings_is_told_of_the_first(folder: Path):
    other = facts(1, config_of(), folder)
    other = msgspec.structs.replace(other, agreed={**other.agreed, "engine.new": "1"})
    found = objection(facts(0, config_of(), folder), other)
    assert found is not None
    assert found.field == "engine.new"


def test_who_is_missing_is_named(folder: Path):
    there = [facts(0, config_of(), folder), facts(2, config_of(), folder)]
    assert missing_hosts(there, 3) == "node 1"
    assert missing_hosts(there, 6) == "node 1, node 3, node 4 and node 5"
    assert missing_hosts(there[:1], 3) == "node 1 and node 2"
    assert missing_hosts(there[:1], 1) == ""
