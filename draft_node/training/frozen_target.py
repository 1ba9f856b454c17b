"""The target while drafters are trained: a fixed function from tokens to features and
distributions.

Runs the service's own forward pass, so every architecture that can be served can be drafted for,
and features are what the drafter will read in service. They are computed anew in every step, unless
they are kept (7 kB a token of a target of 576 numbers, 30 kB of a 4B target): `kept_outputs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from draft_node.training.device import is_cpu
from specserve.backends.choose import choose_backend
from specserve.drafters.weights import EMBEDDING, LM_HEAD, TargetWeights
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import DTYPES, read_spec
from specserve.models.loader import is_stored_in_16_bits, load_model
from specserve.models.parallel import TensorParallel
from specserve.models.parts import Linear
from specserve.models.transformer import EMBEDDING_TAP


@dataclass(frozen=True)
class TargetOutputs:
    """What the target gives for rows of tokens."""

    features: Tensor | None  # [R, T, layers * H]; None: of no layers
    hidden: Tensor  # [R, T, H]: final hidden states
    log_sums: Tensor | None = None  # [R, T]: of exp(logits) over all tokens, where it is known


class Kept(Protocol):
    """Outputs that were computed before."""

    def outputs(self, token_ids: Tensor, layers: Sequence[int]) -> TargetOutputs | None:
        """Of rows [R, T]; None where they are not there."""
        ...


class DenseAttention:
    """Causal attention of R rows of equal length, all from position 0; with a cache, in steps."""

    def __init__(self, num_rows: int, num_kv_heads: int, dtype: torch.dtype) -> None:
        """Products are made in `dtype`."""
        self._num_rows, self._kv_heads, self._dtype = num_rows, num_kv_heads, dtype

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [R * T, heads, head_dim], k and v [R * T, kv_heads, head_dim]: like q."""
        queries, keys, values = (self.by_row(x) for x in (q, k, v))
        groups = queries.shape[1] // self._kv_heads
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
        queries, keys, values = (x.to(self._dtype) for x in (queries, keys, values))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return mixed.transpose(1, 2).reshape(q.shape).to(q.dtype)

    def by_row(self, x: Tensor) -> Tensor:
        """[R * T, heads, head_dim] -> [R, heads, T, head_dim]"""
        return x.view(self._num_rows, -1, *x.shape[1:]).transpose(1, 2)


class TargetFiles:
    """What is known of a target before its weights are read. Raises Unsupported."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec = folder, read_spec(folder)


class FrozenTarget(TargetFiles):
    """The target in `folder`, with all that its drafters read of it."""

    def __init__(self, folder: Path, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        """`dtype` of its products; None: its own, and float32 on a CPU."""
        super().__init__(folder)
        self.device = torch.device(device)
        # Not float16, whose range features and gradients leave.
        own = torch.bfloat16 if self.spec.dtype == "float16" else _DTYPES[self.spec.dtype]
        self.dtype = dtype or (torch.float32 if is_cpu(self.device) else own)
        self.kept: Kept | None = None
        backend = choose_backend(self.device)
        self.model = load_model(
            folder,
            dtype=self.dtype,
            backend=backend,
            parallel=TensorParallel(),
            deterministic=False,
        )
        self._parts = backend.target_parts(
            self.dtype, deterministic=False, is_stored_in_16_bits=is_stored_in_16_bits(folder)
        )
        stored = TargetWeights.of(folder)
        # Of its own memory: what the model holds was made in inference mode, and cannot take part
        # in a backward pass.
        self.embedding = self._place(stored.read(EMBEDDING))  # [V, H]
        tied = self.spec.tie_word_embeddings
        self.lm_head = self.embedding if tied else self._place(stored.read(LM_HEAD))  # [V, H]

    def read(self, token_ids: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Features [R, T, len(layers) * H] and final hidden states [R, T, H] of rows [R, T]."""
        rows, length = token_ids.shape
        positions = torch.arange(length, device=self.device).repeat(rows)
        attention = DenseAttention(rows, self.spec.num_kv_heads, self.dtype)
        # The target is what it is in service, whatever arithmetic its drafter trains in: a cast
        # here would also hand products of packed weights a type they have no kernel for.
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            hidden, tapped = self.model.forward(token_ids.flatten(), positions, attention, layers)
            features = torch.cat(tapped, dim=-1)
            return features.view(rows, length, -1), hidden.clone().view(rows, length, -1)

    def outputs(self, token_ids: Tensor, layers: Sequence[int]) -> TargetOutputs:
        """Of rows [R, T]: what is kept of them, or else computed."""
        kept = None if self.kept is None else self.kept.outputs(token_ids, layers)
        if kept is None:
            return self.computed(token_ids, layers)
        kind = self._parts.dtype  # what is made of them is the same products as of computed ones
        features = None if kept.features is None else kept.features.to(kind)
        return TargetOutputs(features, kept.hidden.to(kind), kept.log_sums)

    def computed(self, token_ids: Tensor, layers: Sequence[int]) -> TargetOutputs:
        """Of rows [R, T], computed now."""
        # The forward pass gives features of some layer always.
        features, hidden = self.read(token_ids, tuple(layers) or (EMBEDDING_TAP,))
        return TargetOutputs(features if layers else None, hidden)

    @torch.no_grad()
    def log_sums(self, hidden: Tensor) -> Tensor:
        """Of exp(logits) over all tokens, [...] float32 at final hidden states [..., H]."""
        with torch.autocast(self.device.type, enabled=False):
            rows = hidden.flatten(0, -2)
            parts = rows.split(max(1, _MAX_LOGITS // self.spec.vocab_size))
            found = [self._logits(part).logsumexp(-1) for part in parts]
            return torch.cat(found).view(hidden.shape[:-1])

    def head_of(self, ids: Tensor) -> Linear:
        """Final hidden states [N, H] to logits [N, DV] of the tokens `ids` [DV] alone."""
        return self._parts.linear([self.lm_head[ids.to(self.device)].to(self._parts.dtype)])

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden)
        assert logits is not None, "a single rank has the logits"
        return logits

    @torch.no_grad()
    def probs(self, hidden: Tensor) -> Tensor:
        """The target's distributions [..., V] float32 at final hidden states [..., H]."""
        with torch.autocast(self.device.type, enabled=False):
            if self.lm_head.dtype == hidden.dtype:
                return F.linear(hidden, self.lm_head).float().softmax(-1)
            # A CPU's head of 16 bits, whose kernel has inputs and sums of 32: a logit of 20 would
            # be off by .06 otherwise.
            logits = self._logits(hidden.reshape(-1, hidden.shape[-1]))
            return logits.softmax(-1).view(*hidden.shape[:-1], -1)

    def layer_tensors(self, index: int) -> dict[str, Tensor]:
        """The weights of layer `index`, by their names within a layer, float32."""
        prefix = f"layers.{index}."
        with Checkpoint(self.folder) as checkpoint:
            names = [name for name in checkpoint.names() if name.startswith(prefix)]
            return {name.removeprefix(prefix): checkpoint.read(name).float() for name in names}

    def final_norm(self) -> Tensor:
        """The weight of the final norm [H], float32."""
        with Checkpoint(self.folder) as checkpoint:
            return checkpoint.read("norm.weight").float()

    def _place(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype)


_MAX_LOGITS = 1 << 25  # at once
_DTYPES = {name: getattr(torch, name) for name in DTYPES}
