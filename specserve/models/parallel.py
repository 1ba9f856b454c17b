"""Tensor parallelism: the ranks of one target and the collectives a forward needs.

Knows torch.distributed, not layers. Of one rank every collective is the identity. The two ways to
close a sharded computation are in `specserve.models.projection`.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from specserve.models.dealing import HeadShare, Share, Shares, deal, deal_heads


class TensorParallel:
    """`size` ranks that a model is dealt to; this process is `rank`."""

    def __init__(
        self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group` None means the default process group, which must exist when `size` > 1."""
        self.rank = rank
        self.size = size
        self.group = group

    def share(self, size: int) -> Share:
        """This rank's part of a dimension of `size` entries."""
        return deal(size, self.size)[self.rank]

    def share_heads(self, num_heads: int, num_kv_heads: int) -> HeadShare:
        """This rank's part of a model's heads."""
        return deal_heads(num_heads, num_kv_heads, self.size)[self.rank]

    def all_gather(self, x: torch.Tensor, shares: Shares) -> torch.Tensor:
        """Every rank's x [N, its share] side by side in rank order: [N, sum of all]."""
        if self.size == 1:
            return x
        x, widths = _widened(x, shares)
        parts = [torch.empty_like(x) for _ in widths]
        dist.all_gather(parts, x, group=self.group)
        return _side_by_side(parts, widths)

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

    def gather(self, x: torch.Tensor, shares: Shares) -> torch.Tensor | None:
        """As `all_gather` on rank 0, None on the others."""
        if self.size == 1:
            return x
        x, widths = _widened(x, shares)
        parts = [torch.empty_like(x) for _ in widths] if self.rank == 0 else None
        dist.gather(x, parts, group=self.group, group_dst=0)
        return None if parts is None else _side_by_side(parts, widths)


def _widened(x: torch.Tensor, shares: Shares) -> tuple[torch.Tensor, list[int]]:
    """x as wide as the widest share, because collectives want equal shapes; and all widths."""
    widths = [len(share) for share in shares]
    missing = max(widths) - x.shape[1]
    return torch.nn.functional.pad(x, (0, missing)) if missing else x.contiguous(), widths


def _side_by_side(parts: Sequence[torch.Tensor], widths: Sequence[int]) -> torch.Tensor:
    """The first so many columns of each."""
    if min(widths) != max(widths):
        parts = [part[:, :width] for part, width in zip(parts, widths, strict=True)]
    return torch.cat(list(parts), dim=1)
