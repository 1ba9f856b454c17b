"""What a launch prints of its settings: each of them, in words."""

import pytest

from specserve.commands.config_table import config_rows, print_config
from specserve.config import Config, ModelConfig, ResolvedConfig, SpeculationConfig, TopologyConfig
from specserve.hardware import CudaDevice, Hardware
from specserve.model.config import read_spec
from specserve.resolve import resolve
from specserve.target_source import EMBEDDED_TARGET

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
    assert cpu["model.half_weights"] == "where faster and lossless"
    assert cuda["model.half_weights"] == "false"
    assert cuda["engine.num_blocks"] == "what fits once the weights are loaded"
    assert cpu["engine.num_blocks"].isdigit()
    assert cpu["engine.kv_memory"].endswith("MiB")
    assert cpu["speculation.gamma"] == "the drafter's"


def test_a_name_is_printed_as_it_is(capsys):
    print_config(resolved("cpu", name="[bold]"))
    assert "[bold]" in capsys.readouterr().out
