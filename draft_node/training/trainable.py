"""What the training loop needs of a model: a loss, a start, figures on held-out text.

Decoders, block drafters and local heads are trained by the same `Trainer` through this protocol.
Any `nn.Module` with the first three methods fulfils it; the rest is nn.Module's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor, nn


class Trainable(Protocol):
    """A model together with its objective.

    Only parameters with `requires_grad` are optimised and clipped. The state dict is what a
    checkpoint holds: frozen parts (a target, its embeddings) stay out of it, best as attributes
    that are no modules and no parameters. `to` moves everything that `loss` reads.
    """

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """A scalar to minimise. token_ids, labels [B, T] int64; labels are the next tokens.

        Those that are not learned are complements (~id), where the text has any.

        May draw from torch's global generator: the trainer seeds it from (seed, step), so that a
        resumed run draws the same. Is compiled as a whole unless the trainer is told not to.
        """
        ...

    def initialise(self, seed: int) -> None:
        """Set every trained parameter to its start; a function of `seed` (and frozen parts)."""
        ...

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Figures on held-out token streams, one stream [N] uint16 or int32 per domain.

        Named as they should be read in a log, such as {"code": 2.57, "prose": 3.48}.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> object: ...

    def parameters(self) -> Iterable[nn.Parameter]: ...

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...

    def to(self, device: str) -> Self: ...
