"""A block drafter that can be trained: DSpark or DFlash in the anchor-first layout.

Parameter names equal those of DeepSpec's checkpoints, so a state dict is a checkpoint without the
target's embeddings and output head, which are passed in and stay as they are. Many blocks of a row
share its context entries, and each block sees only itself besides, so scores are computed against
the context and within blocks apart. There is no cache. What `BlockDrafter` computes from the same
weights is equal; a test compares them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from draft_node.training.blocks import Blocks, BlockShape
from draft_node.training.decoder import MLP, DecoderConfig, RMSNorm
from draft_node.training.rotary import Rotary, RotaryAngles, rotate
from specserve.drafters.spec import BlockSpec, MarkovKind, MarkovSpec
from specserve.models.config import ModelSpec


@dataclass(frozen=True)
class _View:
    """What the blocks see and where they stand; the same for every layer."""

    context_rotary: Rotary  # [T, 1, head_dim]
    block_rotary: Rotary  # [R, A, S, 1, head_dim]
    context_bias: Tensor  # [R, 1, A, 1, 1, T] 0 or -inf
    block_bias: Tensor  # [R, 1, A, S, 1, S]


class _Attention(nn.Module):
    """Attention of block entries over the row's context and their own block."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_dim, self.kv_heads = spec.head_dim, spec.num_kv_heads
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, spec.hidden_size, bias=False)
        norms = (RMSNorm(spec.head_dim, spec.rms_norm_eps) for _ in range(2))
        self.q_norm, self.k_norm = norms if spec.qk_norm else (nn.Identity(), nn.Identity())

    def entries(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_heads, head_dim] of x [..., H]."""
        heads = (*x.shape[:-1], self.kv_heads, self.head_dim)
        keys = rotate(self.k_norm(self.k_proj(x).view(heads)), *rotary)
        return keys.to(x.dtype), self.v_proj(x).view(heads)

    def forward(self, x: Tensor, context: Tensor, view: _View, kept: int) -> Tensor:
        """x [R, A, S, H], context [R, T, H] -> [R, A, kept, H], of the last `kept` entries."""
        rows, count, size, _ = x.shape
        cos, sin = (part[:, :, -kept:, None] for part in view.block_rotary)
        queries = self.q_proj(x[:, :, -kept:])
        queries = queries.view(rows, count, kept, self.kv_heads, -1, self.head_dim)
        queries = rotate(self.q_norm(queries), cos, sin).to(x.dtype)
        queries = queries.permute(0, 3, 1, 2, 4, 5) * self.head_dim**-0.5
        whole = queries.shape  # [R, kv_heads, A, kept, heads a kv_head, head_dim]
        queries = queries.reshape(rows, self.kv_heads, count, -1, self.head_dim)

        keys, values = (e.transpose(1, 2) for e in self.entries(context, view.context_rotary))
        own_keys, own_values = (
            e.permute(0, 3, 1, 2, 4) for e in self.entries(x, view.block_rotary)
        )
        scores = queries.flatten(2, 3) @ keys.transpose(-1, -2)
        scores = scores.view(*whole[:-1], -1).float() + view.context_bias
        own = queries @ own_keys.transpose(-1, -2)
        own = own.view(*whole[:-1], size).float() + view.block_bias[:, :, :, -kept:]
        weights = torch.cat([scores, own], dim=-1).softmax(-1).to(x.dtype)
        seen, own = weights.split((scores.shape[-1], size), dim=-1)

        mixed = (seen.flatten(2, 4) @ values).view(whole)
        mixed = mixed + (own.flatten(3, 4) @ own_values).view(whole)
        return self.o_proj(mixed.permute(0, 2, 3, 1, 4, 5).flatten(3))


class _Layer(nn.Module):
    """Pre-norm residual block; the context skips its input norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        sizes = DecoderConfig(
            hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size
        )
        self.input_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = _Attention(spec)
        self.post_attention_layernorm = RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = MLP(sizes)

    def forward(self, x: Tensor, context: Tensor, view: _View, kept: int) -> Tensor:
        """x [R, A, S, H] -> [R, A, kept, H], of the last `kept` entries."""
        mixed = self.self_attn(self.input_layernorm(x), context, view, kept)
        x = x[:, :, -kept:] + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


class MarkovHead(nn.Module):
    """A low-rank bias of the logits by the token before, for all slots of known tokens at once."""

    def __init__(
        self, spec: MarkovSpec, hidden_size: int, vocab_size: int, draft_vocab_size: int
    ) -> None:
        super().__init__()
        rank, self.kind = spec.rank, spec.kind
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)
        if spec.kind is MarkovKind.GATED:
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if spec.kind is MarkovKind.RNN:
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """hidden [N, G, H], embedded previous tokens [N, G, r] -> bias [N, G, DV]"""
        if self.kind is MarkovKind.GATED:
            gate = self.gate_proj(torch.cat([hidden, embedded], dim=-1)).sigmoid()
            return self.markov_w2(gate * embedded)
        if self.kind is MarkovKind.RNN:
            return self.markov_w2(self._recurrent(hidden, embedded))
        return self.markov_w2(embedded)

    def _recurrent(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """The state keeps the type of the weights: rounding it would add up from slot to slot."""
        state, outputs = torch.zeros_like(embedded[:, 0]), []
        for slot in range(embedded.shape[1]):
            joint = self.joint_proj(torch.cat([state, embedded[:, slot], hidden[:, slot]], dim=-1))
            gate, candidate, output = joint.to(state.dtype).chunk(3, dim=-1)
            outputs.append(output.tanh())
            state = torch.lerp(candidate.tanh(), state, gate.sigmoid())
        return torch.stack(outputs, dim=1)


class ConfidenceHead(nn.Module):
    """P(slot accepted | those before it) as a logit, from the hidden state and the token before."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, G, H (+ r)] -> [N, G]"""
        return self.proj(inputs)[..., 0]


class BlockModel(nn.Module):
    """The drafter that `spec` describes."""

    def __init__(self, spec: BlockSpec) -> None:
        super().__init__()
        decoder = spec.decoder
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        self.spec = spec
        self.fc = nn.Linear(len(spec.feature_layers) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(_Layer(decoder) for _ in range(decoder.num_layers))
        self.norm = RMSNorm(hidden, eps)
        self.markov_head = self.confidence_head = None
        if spec.markov is not None:
            self.markov_head = MarkovHead(
                spec.markov, hidden, decoder.vocab_size, spec.draft_vocab_size
            )
        if spec.confidence is not None:
            rank = spec.markov.rank if spec.markov and spec.confidence.with_markov else 0
            self.confidence_head = ConfidenceHead(hidden + rank)
        self._rotary = RotaryAngles(decoder.rope, decoder.head_dim)

    def shape(self, max_gap: int) -> BlockShape:
        """Of its blocks, behind up to `max_gap` tokens without features."""
        return BlockShape(self.spec.block_size, self.spec.mask_token_id, max_gap)

    def hidden(self, features: Tensor, embedding: Tensor, blocks: Blocks) -> Tensor:
        """Final hidden states [R, A, G, H] of the slots.

        features [R, T, layers * H] of the target, embedding [V, H].
        """
        context = self.hidden_norm(self.fc(features))
        view = self._view(blocks, features.shape[1])
        x = F.embedding(blocks.token_ids, embedding)
        for index, layer in enumerate(self.layers, start=1):
            # Behind the last layer, nothing reads the provisional entries any more.
            kept = self.spec.block_size if index == len(self.layers) else x.shape[2]
            x = layer(x, context, view, kept)
        return self.norm(x)

    def heads(
        self, hidden: Tensor, lm_head: Tensor, previous_ids: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Draft logits [N, G, DV] and confidence logits [N, G] of known previous tokens [N, G].

        hidden [N, G, H], lm_head [DV, H]: of the tokens that are drafted.
        """
        logits = F.linear(hidden, lm_head)
        confidence_inputs = hidden
        if self.markov_head is not None:
            embedded = self.markov_head.markov_w1(previous_ids)
            logits = logits + self.markov_head(hidden, embedded)
            if self.spec.confidence is not None and self.spec.confidence.with_markov:
                confidence_inputs = torch.cat([hidden, embedded], dim=-1)
        if self.confidence_head is None:
            return logits, None
        return logits, self.confidence_head(confidence_inputs)

    def _view(self, blocks: Blocks, length: int) -> _View:
        device = blocks.positions.device
        past = torch.arange(length, device=device)
        seen = past < blocks.context_lens[..., None]  # [R, A, T]
        return _View(
            context_rotary=self._rotary.at(past),
            block_rotary=self._rotary.at(blocks.positions),
            context_bias=bias(seen)[:, None, :, None, None],
            block_bias=bias(blocks.visible)[:, None, :, :, None],
        )


def bias(allowed: Tensor) -> Tensor:
    """What is added to scores: 0 where `allowed` [...], minus infinity elsewhere."""
    zeros = torch.zeros(allowed.shape, device=allowed.device)
    return zeros.masked_fill(~allowed, float("-inf"))
