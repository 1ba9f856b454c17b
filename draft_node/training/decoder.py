"""The trainable decoder: Qwen3's or Llama's architecture as one plain module.

Parameter names equal those of Hugging Face checkpoints, so a state dict is a checkpoint. Training
only: no cache, no positions other than 0..T-1. Embedding and output head may be another model's,
which stay as they are: then they are no parameters, and the state dict has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from draft_node.training import evaluate
from draft_node.training.device import is_cpu
from draft_node.training.rotary import RotaryAngles, rotate
from specserve.models.config import DEFAULT_ROPE_THETA, ModelSpec, RopeSpec

EVALUATION_WINDOW = 512
_DEFAULT_ROPE = RopeSpec(DEFAULT_ROPE_THETA)


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of the decoder; the defaults are the embedded target."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 5
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 768
    rope: RopeSpec = _DEFAULT_ROPE
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    qk_norm: bool = True  # Qwen3 has them, Llama has none
    tie_word_embeddings: bool = True

    @staticmethod
    def of(spec: ModelSpec) -> "DecoderConfig":
        """The same shape, without ballast."""
        return DecoderConfig(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            num_hidden_layers=spec.num_real_layers,
            num_attention_heads=spec.num_heads,
            num_key_value_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            intermediate_size=spec.intermediate_size,
            rope=spec.rope,
            rms_norm_eps=spec.rms_norm_eps,
            max_position_embeddings=spec.max_position_embeddings,
            qk_norm=spec.qk_norm,
            tie_word_embeddings=spec.tie_word_embeddings,
        )


@dataclass(frozen=True)
class FrozenEmbeddings:
    """Another model's, in one type of numbers."""

    embedding: Tensor  # [V, H]
    lm_head: Tensor  # [DV, H], of all tokens or of some


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]"""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


def causal_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention, all operands [B, H, T, D].

    Training on a CPU goes block by block through plain matrix products: for heads this narrow,
    torch's fused CPU kernel takes twice as long (66 against 35 ms of CPU time a layer for 4 rows of
    512 tokens, forward and backward) and nearly half of a training step.
    """
    if not is_cpu(queries.device) or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    length, head_dim = queries.shape[-2:]
    size = max(128, length // 4)  # few blocks: each is compiled separately
    allowed = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
    blocks = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        scores = queries[:, :, start:stop] @ keys[:, :, :stop].transpose(-1, -2)
        scores = scores.float() * head_dim**-0.5
        scores = scores.masked_fill(~allowed[start:stop, :stop], float("-inf"))
        blocks.append(scores.softmax(-1).to(values.dtype) @ values[:, :, :stop])
    return torch.cat(blocks, dim=2)


class Attention(nn.Module):
    """Causal grouped-query attention; Qwen3's has a norm per head on queries and keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.head_dim, self.eps = config.head_dim, config.rms_norm_eps
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        norms = (RMSNorm(config.head_dim, config.rms_norm_eps) for _ in range(2))
        self.q_norm, self.k_norm = norms if config.qk_norm else (nn.Identity(), nn.Identity())

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden] -> [B, T, hidden]"""
        heads = (*x.shape[:2], -1, self.head_dim)
        queries = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)
        keys = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)
        values = self.v_proj(x).view(heads).transpose(1, 2)
        queries = rotate(queries, cos.to(x.dtype), sin.to(x.dtype)).to(values.dtype)
        keys = rotate(keys, cos.to(x.dtype), sin.to(x.dtype)).to(values.dtype)
        keys = keys.repeat_interleave(self.groups, dim=1)
        values = values.repeat_interleave(self.groups, dim=1)
        mixed = causal_attention(queries, keys, values)
        return self.o_proj(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))


class MLP(nn.Module):
    """SwiGLU feed-forward block."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] -> [B, T, hidden]"""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, T, hidden] -> [B, T, hidden]"""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm; exists for the checkpoint prefix `model.`."""

    def __init__(self, config: DecoderConfig, *, owns_embedding: bool) -> None:
        super().__init__()
        if owns_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """Causal language model."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig, frozen: FrozenEmbeddings | None = None) -> None:
        """`frozen`: what embeds and unembeds; None: weights of its own."""
        super().__init__()
        self.config, self._frozen = config, frozen
        self.model = Trunk(config, owns_embedding=frozen is None)
        if frozen is None and not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        angles = RotaryAngles(config.rope, config.head_dim)
        cos, sin = angles.at(torch.arange(config.max_position_embeddings))
        self.register_buffer("cos", cos[:, 0], persistent=False)
        self.register_buffer("sin", sin[:, 0], persistent=False)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Small normal weights; projections into the residual stream start at zero.

        Drawn on the CPU, so that they are the same on every device.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif parameter.ndim == 2:
                drawn = torch.empty(parameter.shape).normal_(0.0, 0.02, generator=generator)
                parameter.copy_(drawn)

    def hidden(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, T] -> normalised final hidden states [B, T, hidden]"""
        if self._frozen is None:
            x = self.model.embed_tokens(token_ids)
        else:
            x = F.embedding(token_ids, self._frozen.embedding).float()
        length = token_ids.shape[1]
        for layer in self.model.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.model.norm(x)

    def unembed(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> logits [..., V], or of the frozen head's tokens."""
        if self._frozen is not None:
            lm_head = self._frozen.lm_head
            return F.linear(hidden.to(lm_head.dtype), lm_head)
        if not self.config.tie_word_embeddings:
            return self.lm_head(hidden)
        return F.linear(hidden, self.model.embed_tokens.weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids [B, T] -> logits [B, T, V]"""
        return self.unembed(self.hidden(token_ids))

    def loss(self, token_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token. token_ids and labels [B, T]."""
        logits = self(token_ids)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def evaluate(self, streams: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Mean nats per token of each held-out stream, in windows of at most 512 tokens."""
        longest = min(EVALUATION_WINDOW, self.config.max_position_embeddings)
        return {
            domain: evaluate.stream_loss(self, stream, min(longest, len(stream) - 1))
            for domain, stream in streams.items()
        }
