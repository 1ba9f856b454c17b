"""What of a process is flashinfer's, and for which models; why not, in one line."""

import functools
import logging

import torch

from specserve.backends.cuda.flash import (
    DTYPES,
    HEAD_DIMS,
    Flash,
    Heads,
    Library,
    why_not,
    why_not_of,
)
from specserve.backends.cuda.flash_trial import trial
from specserve.backends.cuda.fused_layers import FusedOps
from specserve.backends.cuda.fused_trial import LayerSizes, trial_of_layers

_LOG = logging.getLogger(__name__)


class FlashChoice:
    """Of one backend."""

    def __init__(self, device: torch.device, library: Library | None = None) -> None:
        """`library`: flashinfer, or what stands in for it; None: the installed one, if any."""
        obstacle = why_not(device, library)
        self._flash = None if obstacle else Flash(device, library)
        # For the line that a process says of its backend.
        self.description = f"torch's: {obstacle}"
        if self._flash is not None:
            self.description = f"flashinfer {self._flash.version}'s where it has kernels"
        self._find = functools.cache(trial)
        self._find_of_layers = functools.cache(trial_of_layers)
        self._said: set[str] = set()

    def of(
        self, heads: Heads, kept_dtype: torch.dtype, num_slots: int, *, may_fail: bool
    ) -> Flash | None:
        """Kernels of `heads` over a pool of `num_slots` tokens; None where there are none.

        Tried when first asked for. RuntimeError where they are wrong, unless that may be: ranks
        that attended otherwise than the rest would not pad what they exchange with them.
        """
        if self._flash is None:
            return None
        obstacle = why_not_of(heads, kept_dtype, num_slots)
        if not obstacle:
            _LOG.info(
                "trying flashinfer's attention for heads of %d: what was not compiled before, in "
                "~/.cache/flashinfer, takes a minute or two",
                heads.head_dim,
            )
            obstacle = self._find(self._flash, heads)
            if not obstacle:
                return self._flash
            if not may_fail:
                raise RuntimeError(f"{obstacle}; --no-cuda-graphs does without")
        self._say("attention is torch's, which is slower: %s", obstacle)
        return None

    def of_layers(self, sizes: LayerSizes, *, may_fail: bool) -> FusedOps | None:
        """Norms and rotation of layers of these sizes; None where torch's have to do.

        Tried when first asked for, and RuntimeError where they are wrong, as above.
        """
        if self._flash is None or sizes.dtype not in DTYPES or sizes.head_dim not in HEAD_DIMS:
            return None  # of which the attention's line has the reason
        obstacle = self._find_of_layers(self._flash, sizes, self._flash.device)
        if not obstacle:
            return self._flash
        if not may_fail:
            raise RuntimeError(f"{obstacle}; --no-cuda-graphs does without")
        self._say("norms and rotations are torch's, which is slower: %s", obstacle)
        return None

    def _say(self, line: str, obstacle: str) -> None:
        """Once a process and obstacle."""
        if obstacle not in self._said:
            self._said.add(obstacle)
            _LOG.warning(line, obstacle)
