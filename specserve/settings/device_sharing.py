# pyright: strict
"""What follows from whether processes have a device each: who carries tensors, and who takes turns.

NCCL goes from GPU to GPU; between processes on one GPU it carries everything through sockets. And
processes on one GPU take turns on it, unless NVIDIA MPS runs their kernels side by side.
"""

from specserve.errors import InvalidField, Unsupported


def resolve_link(wish: str | None, device: str, *, shares_devices: bool) -> str:
    """What carries rounds to draft processes. Raises Unsupported."""
    if wish == "nccl" and device != "cuda":
        raise Unsupported(
            f"speculation.link: nccl carries tensors between CUDA devices, this is {device} "
            "(--link shm)"
        )
    return wish or ("nccl" if device == "cuda" and not shares_devices else "shm")


def resolve_collectives(device: str, *, shares_devices: bool) -> str:
    """What carries tensors between ranks."""
    return "nccl" if device == "cuda" and not shares_devices else "gloo"


def resolve_mps(wish: bool | None, device: str, *, shares_devices: bool) -> bool | None:
    """Whether MPS is used: None: where it starts. Raises InvalidField."""
    if device == "cuda" and shares_devices:
        return wish
    if wish:
        problem = "is for processes that share a GPU (--device cuda --oversubscribe)"
        raise InvalidField("topology.mps", problem)
    return False
