"""The target while drafters are trained: a fixed function from tokens to features and
distributions.

Runs the service's own forward pass, so every architecture that can be served can be drafted for,
and features are what the drafter will read in service. They are computed anew in every step: a
forward without gradients is cheaper than keeping them (a thousand numbers a token at the embedded
size, about fifteen thousand for a 4B target).
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from draft_node.training.device import is_cpu
from specserve.backends.choose import choose_backend
from specserve.drafters.weights import EMBEDDING, LM_HEAD, TargetWeights
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import DTYPES, read_spec
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel


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
        self.model = load_model(
            folder,
            dtype=self.dtype,
            backend=choose_backend(self.device),
            parallel=TensorParallel(),
            deterministic=False,
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

    @torch.no_grad()
    def probs(self, hidden: Tensor) -> Tensor:
        """The target's distributions [..., V] float32 at final hidden states [..., H]."""
        with torch.autocast(self.device.type, enabled=False):
            if self.lm_head.dtype == hidden.dtype:
                return F.linear(hidden, self.lm_head).float().softmax(-1)
            # A CPU's head of 16 bits, whose kernel has inputs and sums of 32: a logit of 20 would
            # be off by .06 otherwise.
            logits = self.model.logits(hidden.reshape(-1, hidden.shape[-1]))
            assert logits is not None, "a single rank has the logits"
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


_DTYPES = {name: getattr(torch, name) for name in DTYPES}
