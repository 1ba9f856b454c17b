"""Parts of layers by torch's own operations, on any device."""

from collections.abc import Sequence

import torch

from specserve.backends.torch.linear import PlainLinear, TiledLinear
from specserve.models.dealing import Share, Shares
from specserve.models.layers import SwiGLU
from specserve.models.parts import Gate, Linear


class TorchParts:
    """See `LayerParts`."""

    def __init__(
        self,
        *,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool,
        rounded_to: torch.dtype | None = None,
    ) -> None:
        self.dtype = dtype
        self.rounded_to = rounded_to or dtype
        self.device = device
        self.deterministic = deterministic
        self.any_halved = False
        self._is_on_cpu = device.type == "cpu"
        # 64 rows cost CUDA what 8 do; on CPU a tile of 8 is one verification.
        self._tile = 8 if self._is_on_cpu else 64

    def linear(self, parts: Sequence[torch.Tensor], shares: Shares | None = None) -> Linear:
        if self.deterministic:
            whole = tuple(Share(0, len(part), len(part)) for part in parts)
            return TiledLinear(parts, shares or whole, self._tile)
        return PlainLinear(torch.cat(list(parts)) if len(parts) > 1 else parts[0])

    def gate(self, width: int) -> Gate:
        return SwiGLU(width, in_whole_vectors=self._is_on_cpu)

    def quantizes(self, weight: torch.Tensor) -> bool:
        return False
