"""An EAGLE-3 drafter that can be trained, unrolled as it drafts (EAGLE-3, training-time test).

Parameter names equal those of DeepSpec's checkpoints, so a state dict is a checkpoint without the
target's embeddings and output head, which are passed in and stay as they are. A block of G slots
is a chain of G steps: in front of the anchor stands the target's own feature, at every later step
what the drafter gave itself, and gradients flow back through all of them. The chains of a row
share its entries. What `Eagle3Drafter` computes from the same weights is equal; a test compares
them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from draft_node.training.block_model import bias
from draft_node.training.blocks import Blocks, BlockShape, gather_rows
from draft_node.training.decoder import MLP, DecoderConfig, RMSNorm
from draft_node.training.rotary import Rotary, RotaryAngles, rotate
from specserve.drafters.spec import Eagle3Spec
from specserve.models.config import ModelSpec


@dataclass(frozen=True)
class _View:
    """What the S steps of the chains see, and where they stand; provisional steps come first."""

    row_bias: Tensor  # [R, 1, A, 1, T] 0 or -inf
    chain_bias: Tensor  # [R, 1, A, S, 1, S]
    rotary: Rotary  # [R, A, S, 1, head_dim]
    real: Tensor  # [R, A, S, 1] bool: others are padding and leave a chain as it is


class _Entries:
    """Keys and values of the rows, and of the chains as far as they are."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """Of the rows, [R, T, kv_heads, head_dim] each."""
        self.keys, self.values = keys.transpose(1, 2), values.transpose(1, 2)
        self._chain: list[tuple[Tensor, Tensor]] = []

    def extended(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The chains' with one step [R, A, kv_heads, head_dim] more: [R, kv_heads, A, n, ...]."""
        self._chain.append((keys.transpose(1, 2), values.transpose(1, 2)))
        all_keys, all_values = zip(*self._chain, strict=True)
        return torch.stack(all_keys, dim=3), torch.stack(all_values, dim=3)


class _Attention(nn.Module):
    """Attention of a chain's newest step over the row and the chain; inputs are twice as wide."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim, self.kv_heads = spec.head_dim, spec.num_kv_heads
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(2 * spec.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(2 * spec.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(2 * spec.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, spec.hidden_size, bias=False)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_norm_eps)

    def entries(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_heads, head_dim] of x [..., 2H]."""
        heads = (*x.shape[:-1], self.kv_heads, self.head_dim)
        keys = rotate(self.k_norm(self.k_proj(x).view(heads)), *rotary)
        return keys.to(x.dtype), self.v_proj(x).view(heads)

    def forward(self, x: Tensor, entries: _Entries, view: _View, step: int) -> Tensor:
        """x [R, A, 2H] of every chain's step `step` -> [R, A, H]; `entries` grow by it."""
        rows, count, _ = x.shape
        rotary = view.rotary[0][:, :, step], view.rotary[1][:, :, step]
        keys, values = entries.extended(*self.entries(x, rotary))
        queries = self.q_norm(self.q_proj(x).view(rows, count, -1, self.head_dim))
        queries = (rotate(queries, *rotary) * self.head_dim**-0.5).to(x.dtype)
        queries = queries.view(rows, count, self.kv_heads, -1, self.head_dim).transpose(1, 2)
        whole = queries.shape  # [R, kv_heads, A, heads a kv_head, head_dim]

        scores = queries.flatten(2, 3) @ entries.keys.transpose(-1, -2)
        scores = scores.view(*whole[:-1], -1).float() + view.row_bias
        own = (queries @ keys.transpose(-1, -2)).float()
        own = own + view.chain_bias[:, :, :, step, :, : step + 1]
        weights = torch.cat([scores, own], dim=-1).softmax(-1).to(x.dtype)
        seen, own = weights.split((scores.shape[-1], step + 1), dim=-1)
        mixed = (seen.flatten(2, 3) @ entries.values).view(whole) + own @ values
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """The one layer: a token and the feature before it, to the feature that follows."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.rms_norm_eps
        sizes = DecoderConfig(hidden_size=hidden, intermediate_size=spec.intermediate_size)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = _Attention(spec)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(sizes)

    def inputs(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """[..., H] both -> [..., 2H]"""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)

    def forward(
        self, embedded: Tensor, hidden: Tensor, entries: _Entries, view: _View, step: int
    ) -> Tensor:
        """embedded, hidden [R, A, H] -> [R, A, H]"""
        x = hidden + self.self_attn(self.inputs(embedded, hidden), entries, view, step)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Model(nn.Module):
    """The drafter that `spec` describes."""

    def __init__(self, spec: Eagle3Spec) -> None:
        super().__init__()
        decoder = spec.decoder
        hidden = decoder.hidden_size
        self.spec = spec
        self.fc = nn.Linear(len(spec.feature_layers) * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([_Layer(decoder)])
        self.norm = RMSNorm(hidden, decoder.rms_norm_eps)
        self._rotary = RotaryAngles(decoder.rope, decoder.head_dim)

    def shape(self, max_gap: int) -> BlockShape:
        """Of its chains, behind up to `max_gap` tokens without features; no slot is masked."""
        return BlockShape(self.spec.gamma, 0, max_gap)

    def hidden(self, features: Tensor, embedding: Tensor, blocks: Blocks) -> Tensor:
        """Final hidden states [R, A, G, H] of the slots, each behind its known previous token.

        features [R, T, layers * H] of the target, embedding [V, H].
        """
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        projected, num_gap = self.fc(features), blocks.token_ids.shape[2] - self.spec.gamma
        token_ids = torch.cat([blocks.token_ids[..., :num_gap], blocks.previous_ids], dim=2)
        entries = self._row_entries(layer, projected, embedding, blocks.row_ids)
        view = self._view(blocks, entries.keys.shape[2])
        hidden, found = gather_rows(projected, blocks.context_lens - 1), list[Tensor]()
        for step in range(token_ids.shape[2]):
            embedded = F.embedding(token_ids[..., step], embedding)
            following = layer(embedded, hidden, entries, view, step)
            hidden = torch.where(view.real[:, :, step], following, hidden)
            found.append(hidden)
        return self.norm(torch.stack(found[num_gap:], dim=2))

    def heads(
        self, hidden: Tensor, lm_head: Tensor, previous_ids: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Draft logits [N, G, DV] of hidden [N, G, H], lm_head [DV, H]; there is no confidence."""
        return F.linear(hidden, lm_head), None

    def _row_entries(
        self, layer: _Layer, projected: Tensor, embedding: Tensor, row_ids: Tensor
    ) -> _Entries:
        """Entry p pairs the feature at p with the token at p + 1."""
        following = row_ids[:, 1 : projected.shape[1] + 1]
        count = following.shape[1]
        inputs = layer.inputs(F.embedding(following, embedding), projected[:, :count])
        rotary = self._rotary.at(torch.arange(count, device=row_ids.device))
        return _Entries(*layer.self_attn.entries(inputs, rotary))

    def _view(self, blocks: Blocks, num_entries: int) -> _View:
        """A chain begins with the entry of its last feature, so it sees those before it alone."""
        past = torch.arange(num_entries, device=blocks.positions.device)
        seen = past < blocks.context_lens[..., None] - 1
        # A step stands where the feature stands that it reads, one before its token.
        positions = (blocks.positions - 1).clamp(min=0)
        return _View(
            row_bias=bias(seen)[:, None, :, None],
            chain_bias=bias(blocks.visible.tril())[:, None, :, :, None],
            rotary=self._rotary.at(positions),
            real=blocks.visible[:, :, -1, :, None],  # the last slot sees all there is
        )
