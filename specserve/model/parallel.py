"""Tensor parallelism: the ranks of one target and the collectives a forward needs.

Knows torch.distributed, not layers. Of one rank every collective is the identity. The two ways to
close a sharded computation are in `specserve.model.projection`.
"""

import torch
import torch.distributed as dist


class TensorParallel:
    """`size` ranks that hold equal shards of a model; this process is `rank`."""

    def __init__(
        self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group` None means the default process group, which must exist when `size` > 1."""
        self.rank = rank
        self.size = size
        self.group = group

    def shard(self, size: int) -> slice:
        """This rank's part of a dimension of `size` entries."""
        width = size // self.size
        return slice(self.rank * width, (self.rank + 1) * width)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's x [N, width] side by side in rank order: [N, size * width]."""
        if self.size == 1:
            return x
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts, dim=1)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in an order of the backend's choosing; `x` is overwritten."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def agree(self, verdict: bool) -> bool:
        """Whether it is every rank's."""
        if self.size == 1:
            return verdict
        count = torch.tensor([int(verdict)])
        dist.all_reduce(count, op=dist.ReduceOp.MIN, group=self.group)
        return bool(count.item())

    def gather(self, x: torch.Tensor) -> torch.Tensor | None:
        """As `all_gather` on rank 0, None on the others."""
        if self.size == 1:
            return x
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(x, parts, group=self.group, group_dst=0)
        return None if parts is None else torch.cat(parts, dim=1)
