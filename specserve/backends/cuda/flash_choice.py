"""Whether a process attends by flashinfer, and for which models; why not, in one line."""

import functools
import logging

import torch

from specserve.backends.cuda.flash import Flash, Heads, Library, why_not, why_not_of
from specserve.backends.cuda.flash_trial import trial

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
        if obstacle not in self._said:
            self._said.add(obstacle)
            _LOG.warning("attention is torch's, which is slower: %s", obstacle)
        return None
