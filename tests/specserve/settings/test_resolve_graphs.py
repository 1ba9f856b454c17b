"""Where forwards are recorded as CUDA graphs: decided once, from wishes and the machine."""

import msgspec
import pytest

from specserve.errors import InvalidField
from specserve.settings.config import Config, EngineConfig, TopologyConfig
from tests.specserve.settings.test_resolve import DEVICES, MACHINE, resolved

CUDA = TopologyConfig(device="cuda")
# Of two devices: ranks that share one meet through the host.
SHARED = TopologyConfig(topology="3+0", device="cuda", oversubscribe=True)


def graphs(wish: bool | None = None, topology: TopologyConfig = CUDA, **engine: bool) -> bool:
    """What becomes of a wish for CUDA graphs on a machine with devices."""
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    wished = EngineConfig(cuda_graphs=wish, **engine)
    return bool(resolved(Config(topology=topology, engine=wished), machine).engine.cuda_graphs)


def test_forwards_are_recorded_where_they_can_be():
    assert graphs()
    assert graphs(topology=TopologyConfig(topology="2+0"))  # over NCCL
    assert not graphs(False)
    assert not graphs(deterministic=True)
    assert not graphs(topology=SHARED)
    assert not graphs(topology=TopologyConfig(device="cpu"))
    alone = TopologyConfig(topology="1+2", device="cuda", oversubscribe=True)
    assert graphs(topology=alone)  # one rank meets nobody


@pytest.mark.parametrize(
    ("topology", "deterministic", "problem"),
    [
        (TopologyConfig(device="cpu"), False, "the device is cpu"),
        (SHARED, False, "ranks that share a device meet by gloo"),
        (CUDA, True, "engine.deterministic"),
    ],
)
def test_a_wish_for_recordings_that_cannot_be_is_refused(
    topology: TopologyConfig, deterministic: bool, problem: str
):
    with pytest.raises(InvalidField, match=f"engine.cuda_graphs: .*{problem}"):
        graphs(True, topology, deterministic=deterministic)
