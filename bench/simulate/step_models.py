# pyright: strict
"""What forwards and drafts take: measured points, or a roofline of published figures.

Both become the tables that the shipped planner reads, so that simulator and planner agree on what
lies between two points. A roofline is the larger of reading what a device holds and multiplying by
it, plus what every layer takes whatever it computes: two all-reduces where a model is split, and
starting kernels (SSD runs CUDA graphs, too). How much of the published speed is reached is stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specserve.drafters.draft_times import DraftTimes
from specserve.types import DraftTime
from target_node.planning.step_table import FrozenSteps, Slopes

# Tokens of forwards: dense where most rounds lie.
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
         3072, 4096)  # fmt: skip
_DRAFTED_AT_ONCE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Device:
    """One accelerator, as its maker says, and what of it is reached."""

    name: str
    bytes_per_s: float
    flops_per_s: float  # dense, of the dtype that is served
    bytes_reached: float = 0.8
    flops_reached: float = 0.6
    layer_s: float = 50e-6  # that a layer takes whatever it computes
    reduce_s: float = 10e-6  # one all-reduce of a few tokens among the devices of a model


@dataclass(frozen=True)
class Model:
    """A dense transformer, as published."""

    name: str
    num_params: float
    num_layers: int
    kv_bytes: float  # of keys and values of a token
    weight_bytes: float = 2.0  # of a parameter


H100 = Device("H100 SXM", 3.35e12, 989e12)
LLAMA_70B = Model("Llama-3.1-70B", 70.6e9, 80, 2 * 80 * 8 * 128 * 2)
LLAMA_1B = Model("Llama-3.2-1B", 1.24e9, 16, 2 * 16 * 8 * 64 * 2)
QWEN_32B = Model("Qwen3-32B", 32.8e9, 64, 2 * 64 * 8 * 128 * 2)
QWEN_06B = Model("Qwen3-0.6B", 0.6e9, 28, 2 * 28 * 8 * 128 * 2)


def forward_s(device: Device, model: Model, num_devices: int, num_tokens: int) -> float:
    """Seconds of a forward of so many tokens, without their contexts; Megatron's split."""
    read_s = model.num_params * model.weight_bytes / (device.bytes_per_s * device.bytes_reached)
    multiply_s = 2 * model.num_params * num_tokens / (device.flops_per_s * device.flops_reached)
    reduces = 2 * device.reduce_s if num_devices > 1 else 0.0
    return max(read_s, multiply_s) / num_devices + model.num_layers * (device.layer_s + reduces)


def pace_of(plain_s: float, device: Device, model: Model, num_devices: int) -> float:
    """How many times as long as the roofline says a forward of one token is known to take."""
    return plain_s / forward_s(device, model, num_devices, 1)


def roofline(device: Device, model: Model, num_devices: int, *, pace: float = 1.0) -> FrozenSteps:
    """The table of a target on so many devices.

    All sizes take `pace` times as long, so that the roofline then says only how they compare.
    """
    key_s = model.kv_bytes / num_devices / (device.bytes_per_s * device.bytes_reached)
    cells = [(n, pace * forward_s(device, model, num_devices, n)) for n in SIZES]
    return FrozenSteps(cells, Slopes(0.0, key_s), 1.0, ())


def chain_times(device: Device, model: Model) -> DraftTimes:
    """Of a language model on one device that drafts token by token."""
    return DraftTimes(DraftTime(n, 0.0, forward_s(device, model, 1, n)) for n in _DRAFTED_AT_ONCE)


def measured_steps(points: Mapping[int, float]) -> FrozenSteps:
    """The table of a target whose forwards of so many tokens were timed, in seconds."""
    return FrozenSteps(sorted(points.items()), Slopes(), 1.0, ())


def chains(points: Mapping[int, tuple[float, float]]) -> DraftTimes:
    """Of a drafter that was timed: by blocks, what all take and what every token adds, seconds."""
    return DraftTimes(DraftTime(n, *each) for n, each in sorted(points.items()))
