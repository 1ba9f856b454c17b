"""What drafters were measured to gain is found again here, and nowhere else."""

from pathlib import Path

import msgspec
import pytest

from specserve.settings import kept_files
from specserve.settings.config import Config, EngineConfig, ModelConfig, TopologyConfig
from specserve.settings.resolve import resolve
from specserve.settings.speed_files import Asked, SpeedFile, SpeedRecord, measured_speeds
from tests.specserve.settings.resolving import DEVICES, MACHINE, SPEC

ASKED = Asked(temperature=1.0, num_tokens=64, prompts="0123456789abcdef")
WITH_GPUS = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "speeds"


@pytest.fixture
def models(tmp_path) -> Path:
    """A folder with a target and two drafters in it."""
    for name in ("target", "mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path


def config_of(models: Path, wish: Config | None = None, hardware=MACHINE):
    return resolve(wish or Config(), hardware, SPEC, models / "target")


def keep(models: Path, name: str, asked: Asked = ASKED, value: float = 1.4) -> SpeedRecord:
    file = SpeedFile(config_of(models), asked, MACHINE, drafter=str(models / name), local_head=None)
    record = SpeedRecord(
        made_for=file.made_for, drafter=file.drafter, local_head=None, asked=asked,
        num_pairs=12, value=value, low=value - 0.1, high=value + 0.1,
    )  # fmt: skip
    file.write(record)
    return record


def found(models: Path, wish: Config | None = None, hardware=MACHINE) -> list[SpeedRecord]:
    return measured_speeds(config_of(models, wish, hardware), hardware)


def test_drafters_of_a_target_and_kinds_of_requests_lie_side_by_side(models, cache):
    assert found(models) == []
    greedy = msgspec.structs.replace(ASKED, temperature=0.0)
    kept = [keep(models, "mine"), keep(models, "mine", greedy), keep(models, "other", value=2)]
    assert sorted(found(models), key=str) == sorted(kept, key=str)
    again = keep(models, "mine", value=1.6)
    assert again in found(models)
    assert kept[0] not in found(models)
    assert [path.suffix for path in cache.iterdir()] == [".json"] * 3
    assert again.figure == "1.60 [1.50, 1.70]"


def test_a_folder_is_the_same_by_whatever_way_it_is_named(models, monkeypatch):
    record = keep(models, "mine")
    (models / "link").symlink_to(models / "target")
    wish = resolve(Config(), MACHINE, SPEC, models / "link")
    assert measured_speeds(wish, MACHINE) == [record]


@pytest.mark.parametrize("changed", ["target", "mine"])
def test_other_weights_have_no_figure(models, changed, caplog):
    keep(models, "mine")
    (models / changed / "model.safetensors").write_bytes(b"trained anew")
    assert found(models) == []
    (models / "target").rename(models / "moved")
    (models / "target").mkdir()
    assert found(models) == []
    assert caplog.text == ""


def test_a_drafter_that_is_gone_has_no_figure(models):
    keep(models, "mine")
    (models / "mine" / "model.safetensors").unlink()
    (models / "mine").rmdir()
    assert found(models) == []


def test_a_drafter_that_has_become_a_loop_of_links_has_no_figure(models):
    keep(models, "mine")
    (models / "mine").rename(models / "moved")
    (models / "mine").symlink_to(models / "mine")
    assert found(models) == []


def test_another_machine_or_installation_has_no_figure(models, monkeypatch, caplog):
    keep(models, "mine")
    assert found(models, hardware=msgspec.structs.replace(MACHINE, cpu_name="another")) == []
    monkeypatch.setattr(kept_files, "_version", lambda package: "0.1")
    assert found(models) == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    "wish",
    [
        Config(model=ModelConfig(dtype="bfloat16")),
        Config(model=ModelConfig(ballast="12M")),
        Config(topology=TopologyConfig(threads=2)),
        Config(topology=TopologyConfig(topology="2+0")),
        Config(engine=EngineConfig(deterministic=False)),
    ],
)
def test_another_kind_of_service_has_no_figure(models, wish):
    keep(models, "mine")
    assert found(models, wish) == []


def test_another_device_has_no_figure(models):
    keep(models, "mine")
    assert found(models, hardware=WITH_GPUS) == []
    assert len(found(models, Config(topology=TopologyConfig(device="cpu")), WITH_GPUS)) == 1


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": 1}', b"[1, 2]", b"\xff\xfe", b"[" * 9999])
def test_a_broken_file_costs_a_line_and_no_other_file(models, cache, text, caplog):
    record = keep(models, "mine")
    (cache / "0.json").write_bytes(text)
    assert found(models) == [record]
    assert len(caplog.records) == 1
    assert "0.json is of no use, and is left out" in caplog.text


def test_a_cache_folder_that_cannot_be_read_costs_a_line(models, monkeypatch, caplog):
    monkeypatch.setenv("SPECSERVE_CACHE", "/" + "x" * 300)  # longer than a name may be
    assert found(models) == []
    assert len(caplog.records) == 1
    assert "speeds of drafters are not known: " in caplog.text


def test_a_file_of_another_format_is_left_out(models, cache):
    keep(models, "mine")
    (path,) = cache.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    assert found(models) == []
