"""The processes of one training run: what they agree on, and how their gradients become one.

Each takes its part of a step's rows, and all take the same step. The first one logs, evaluates,
saves and exports. They meet through a file in a folder of their own, and on loopback.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, nn

from draft_node.training.device import is_cpu

# While the first one evaluates and saves, or the target writes. Nobody waits for the dead: the
# others end with the first one, and it is told of their ends.
_PATIENCE = timedelta(days=30)
_GOLDEN = 0x9E3779B97F4A7C15  # spreads the seeds of ranks over 64 bits


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Ranks:
    """This process among `count`; alone by default."""

    rank: int = 0
    count: int = 1
    parting: Callable[[], None] = _nothing  # called when all have come to `disband`

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Of what this process draws; the first one's is as if it were alone."""
        return (seed + self.rank * _GOLDEN) % 2**64

    def part(self, rows: int) -> slice:
        """This process's of a step's rows, of which every one has as many."""
        size = rows // self.count
        return slice(self.rank * size, (self.rank + 1) * size)

    def agree(self, stop: bool, active_s: float) -> tuple[bool, float]:
        """Whether anyone wants to stop, and the first one's clock. Every process calls it."""
        if self.count == 1:
            return stop, active_s
        said = torch.tensor([float(stop), active_s if self.is_first else 0.0], dtype=torch.float64)
        torch.distributed.all_reduce(said)
        return bool(said[0] > 0), float(said[1])

    @torch.no_grad()
    def take_over(self, tensors: Iterable[Tensor]) -> None:
        """What the first one has, in place: what others fitted may differ by its last bit."""
        if self.count > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0)

    @torch.no_grad()
    def average(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> None:
        """Gradients and the loss become their means over processes, in place."""
        if self.count == 1:
            return
        tensors = [loss, *(p.grad for p in parameters if p.grad is not None)]
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        torch.distributed.all_reduce(flat)
        flat /= self.count
        for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))

    def wait(self) -> None:
        """For all the others to come here."""
        if self.count > 1:
            torch.distributed.barrier()

    def disband(self) -> None:
        """The end of what they do together: the first one goes on alone."""
        self.wait()
        self.parting()
        part_ways()


def meet(folder: Path, rank: int, count: int, device: str) -> Ranks:
    """Join the processes of a run in `folder`, which nobody else uses. Waits for all of them."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")
    torch.distributed.init_process_group(
        "gloo" if is_cpu(device) else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=count,
        timeout=_PATIENCE,
    )
    return Ranks(rank, count)


def part_ways() -> None:
    """The end of what `meet` began; nothing without."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
