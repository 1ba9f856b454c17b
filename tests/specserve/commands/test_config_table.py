"""What a launch prints of its settings: those that tell something, or all of them, in words."""

import pytest

from specserve.commands.config_table import config_rows, print_config, telling_rows
from specserve.models.config import read_spec
from specserve.settings.config import (
    Config,
    ModelConfig,
    ResolvedConfig,
    SpeculationConfig,
    TopologyConfig,
)
from specserve.settings.hardware import CudaDevice, Hardware
from specserve.settings.resolve import resolve
from specserve.settings.target_source import EMBEDDED_TARGET

GIB = 1 << 30
MACHINE = Hardware(
    cores=(0, 1),
    cpu_name="test",
    available_memory=8 * GIB,
    cuda_devices=(CudaDevice(index=0, name="test", memory=80 * GIB),),
)


def resolved(device: str, mode: str = "off", **model: str) -> ResolvedConfig:
    config = Config(
        model=ModelConfig(**model),
        topology=TopologyConfig(device=device),
        speculation=SpeculationConfig(mode=mode, drafter=None if mode == "off" else "lm"),
    )
    return resolve(config, MACHINE, read_spec(EMBEDDED_TARGET), EMBEDDED_TARGET)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["off", "sync"])
def test_no_setting_is_left_to_guess(device, mode):
    rows = config_rows(resolved(device, mode))
    assert {setting for setting, value in rows.items() if value in ("", "-", "None")} == set()


def test_what_only_the_target_can_tell_is_said_in_words():
    cpu, cuda = config_rows(resolved("cpu")), config_rows(resolved("cuda"))
    assert cuda["engine.kv_memory"] == "what is free once the weights are loaded"
    assert cpu["engine.kv_memory"].endswith("MiB")
    assert cpu["speculation.gamma"] == "the drafter's"


def test_a_name_is_printed_as_it_is(capsys):
    print_config({"model.name": "[bold]"})
    assert "[bold]" in capsys.readouterr().out


def test_a_log_has_whole_lines_and_no_more(capsys):
    path = "/models/" + "of-a-name/" * 40 + "model.gguf"
    print_config({"model.target": path, "model.name": "tiny"})
    heading, target, name, *rest = capsys.readouterr().out.splitlines()
    assert (heading.split(), target.split()) == (["setting", "value"], ["model.target", path])
    assert name.split() == ["model.name", "tiny"]
    assert "".join(rest) == ""
    assert max(map(len, (heading, target, name))) < len(path) + 40


def telling(**sections: object) -> dict[str, str]:
    wish = Config(**sections)
    return telling_rows(wish, resolve(wish, MACHINE, read_spec(EMBEDDED_TARGET), EMBEDDED_TARGET))


def test_a_launch_tells_what_it_decided_and_little_else():
    rows = telling(topology=TopologyConfig(device="cpu"), speculation=SpeculationConfig(mode="off"))
    assert list(rows) == [
        "model.target",
        "model.name",
        "model.dtype",
        "model.max_model_len",
        "topology.topology",
        "topology.device",
        "engine.kv_memory",
        "engine.kv_dtype",
        "engine.deterministic",
        "speculation.mode",
        "place.target.0",
        "place.api.0",
    ]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("engine", "max_batch_tokens", 1024),
        ("engine", "prefix_cache", False),
        ("server", "drain_timeout_s", 3.0),
        ("telemetry", "log_level", "warning"),
        ("topology", "oversubscribe", True),
    ],
)
def test_what_somebody_chose_is_told(section, key, value):
    kind = type(getattr(Config(), section))
    sections = {
        "topology": TopologyConfig(device="cpu"),
        "speculation": SpeculationConfig(mode="off"),
    }
    usual, chosen = telling(**sections), telling(**{**sections, section: kind(**{key: value})})
    assert chosen.keys() - usual.keys() == {f"{section}.{key}"}


def test_who_drafts_is_told_where_somebody_does():
    def drafters(**speculation: str) -> set[str]:
        topology = TopologyConfig(device="cpu", topology="1+1", oversubscribe=True)
        rows = telling(topology=topology, speculation=SpeculationConfig(**speculation))
        return {key for key in rows if "drafter" in key}

    assert drafters(mode="async", drafter="a") == {"speculation.drafter"}
    both = {"speculation.drafter", "speculation.colocated_drafter"}
    assert drafters(mode="auto", drafter="a", colocated_drafter="b") == both
