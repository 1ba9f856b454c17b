"""The one place that decides which backend computes."""

import functools
import logging

import torch

from specserve.backends.base import Backend
from specserve.backends.torch.backend import TorchBackend

_LOG = logging.getLogger(__name__)


def choose_backend(device: torch.device, *, cuda_graphs: bool = False) -> Backend:
    """The fastest backend that there is for `device`; the same one for the same arguments.

    Called once at the start of a process, which passes it down. `cuda_graphs`: few rows are
    computed by CUDA graphs, on CUDA devices. The choice and its reason are one line of the log.
    """
    backend = _chosen(torch.empty(0, device=device).device, cuda_graphs)
    _LOG.info("backend: %s", backend.description)
    return backend


def occupy(device: torch.device) -> None:
    """Make `device` the one that this process means where none is named."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def preload() -> Backend:
    """What processes on CPUs will choose, prepared by the one that forks them."""
    return _chosen(torch.device("cpu"), False)


@functools.cache
def _chosen(device: torch.device, cuda_graphs: bool) -> Backend:
    backend, reason = _choose(device, cuda_graphs)
    backend.description = f"{backend.name} on {device}: {reason}"
    return backend


def _choose(device: torch.device, cuda_graphs: bool) -> tuple[Backend, str]:
    if device.type == "cuda":
        from specserve.backends.cuda import noise

        made_by = noise.choose(device)
        if not cuda_graphs:
            return TorchBackend(device), f"engine.cuda_graphs is off; noise is {made_by}"
        from specserve.backends.cuda.backend import CudaGraphBackend

        backend = CudaGraphBackend(device)
        parts = f"attention is {backend.attention}; noise is {made_by}"
        return backend, f"few rows are replayed as CUDA graphs; {parts}"
    if device.type == "cpu":
        from specserve.backends.cpu.backend import CpuBackend

        obstacle = CpuBackend.why_not()
        if not obstacle:
            return CpuBackend(device), "forwards and noise are compiled for this processor"
        return TorchBackend(device), obstacle
    return TorchBackend(device), "nothing faster is made for this kind of device"
