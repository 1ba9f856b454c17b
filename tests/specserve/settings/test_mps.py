"""When MPS is tried: for processes that share a GPU, unless somebody said no."""

import msgspec
import pytest

from specserve.errors import InvalidField
from specserve.settings.config import Config, SpeculationConfig, TopologyConfig
from tests.specserve.settings.resolving import DEVICES, MACHINE, resolved

TWO_GPUS = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)


def placed(topology: str, device: str = "cuda", **fields) -> Config:
    where = TopologyConfig(topology=topology, device=device, oversubscribe=True, **fields)
    return Config(topology=where, speculation=SpeculationConfig(mode="async"))


def test_mps_is_tried_where_processes_share_a_gpu_and_nobody_said_no():
    for wish in (None, True, False):
        config = resolved(placed("1+2", mps=wish), TWO_GPUS)
        assert config.topology.mps is wish
    assert resolved(placed("1+1"), TWO_GPUS).topology.mps is False
    assert resolved(placed("1+1", "cpu")).topology.mps is False


@pytest.mark.parametrize("config", [placed("1+1", mps=True), placed("1+9", "cpu", mps=True)])
def test_mps_for_processes_that_share_no_gpu_is_refused(config):
    message = (
        r"^topology\.mps: is for processes that share a GPU \(--device cuda --oversubscribe\)$"
    )
    with pytest.raises(InvalidField, match=message):
        resolved(config, TWO_GPUS)


def test_what_was_measured_side_by_side_is_told_from_what_was_by_turns():
    ways = {resolved(placed("1+2", mps=wish), TWO_GPUS).sharing for wish in (True, False)}
    assert ways == {"oversubscribed True, side by side", "oversubscribed True"}
