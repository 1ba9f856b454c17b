"""DSpark's Markov heads: a low-rank bias of each slot's logits by the token before it.

What depends on the block alone is computed for all slots at once; a slot then costs a lookup, at
most one product of rank size, and one from rank to vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.drafters.serial_head import SerialHead, SerialRun
from specserve.drafters.spec import MarkovKind, MarkovSpec
from specserve.drafters.weights import DraftWeights
from specserve.models.parts import Linear

EMBEDDING = "markov_head.markov_w1.weight"
_OUTPUT = "markov_head.markov_w2.weight"


def markov_tensors(
    spec: MarkovSpec, hidden_size: int, vocab_size: int, draft_vocab_size: int
) -> dict[str, tuple[int, ...]]:
    rank = spec.rank
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (vocab_size, rank),
        _OUTPUT: (draft_vocab_size, rank),
    }
    if spec.kind is MarkovKind.GATED:
        shapes["markov_head.gate_proj.weight"] = (rank, hidden_size + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if spec.kind is MarkovKind.RNN:
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden_size)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    return shapes


def load_markov_head(weights: DraftWeights, spec: MarkovSpec) -> SerialHead:
    embedding, output = weights.tensor(EMBEDDING), weights.linear(_OUTPUT)
    rank = spec.rank
    if spec.kind is MarkovKind.VANILLA:
        return VanillaHead(embedding, output)
    if spec.kind is MarkovKind.GATED:
        gate = weights.tensor("markov_head.gate_proj.weight")
        return GatedHead(
            embedding,
            output,
            from_hidden=weights.packed(gate[:, :-rank].contiguous()),
            from_token=weights.packed(gate[:, -rank:].contiguous()),
            bias=weights.tensor("markov_head.gate_proj.bias"),
        )
    joint = weights.tensor("markov_head.joint_proj.weight")
    return RnnHead(
        embedding,
        output,
        from_hidden=weights.packed(joint[:, 2 * rank :].contiguous()),
        from_state_and_token=weights.packed(joint[:, : 2 * rank].contiguous()),
        bias=weights.tensor("markov_head.joint_proj.bias"),
    )


@dataclass(frozen=True)
class VanillaHead:
    """b_j = W2 W1[prev]"""

    embedding: Tensor  # [V, r]
    output: Linear  # [B, r] -> [B, DV]

    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        return VanillaHead._Run(self, base_logits)

    @dataclass(frozen=True)
    class _Run:
        head: "VanillaHead"
        base_logits: Tensor

        def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
            bias = self.head.output(self.head.embedding.index_select(0, previous_ids))
            return self.base_logits[:, slot].add_(bias)


@dataclass(frozen=True)
class GatedHead:
    """b_j = W2 (sigmoid(G [h_j; e] + b_G) * e), e = W1[prev]"""

    embedding: Tensor
    output: Linear
    from_hidden: Linear  # G's columns for h_j: [N, H] -> [N, r]
    from_token: Linear  # G's columns for e
    bias: Tensor  # [r]

    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        offsets = self.from_hidden(hidden.flatten(0, 1)).add_(self.bias)
        return GatedHead._Run(self, base_logits, offsets.view(*hidden.shape[:2], -1))

    @dataclass(frozen=True)
    class _Run:
        head: "GatedHead"
        base_logits: Tensor
        offsets: Tensor  # [B, G, r]

        def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
            e = self.head.embedding.index_select(0, previous_ids)
            gate = self.head.from_token(e).add_(self.offsets[:, slot]).sigmoid_()
            return self.base_logits[:, slot].add_(self.head.output(gate.mul_(e)))


@dataclass(frozen=True)
class RnnHead:
    """(g, c, o) = J [s_j; e; h_j] + b_J; b_j = W2 tanh(o); s_{j+1} blends s_j and tanh(c) by g."""

    embedding: Tensor
    output: Linear
    from_hidden: Linear  # J's columns for h_j: [N, H] -> [N, 3r]
    from_state_and_token: Linear  # J's columns for [s_j; e]
    bias: Tensor  # [3r]

    def begin(self, hidden: Tensor, base_logits: Tensor) -> SerialRun:
        offsets = self.from_hidden(hidden.flatten(0, 1)).add_(self.bias)
        state = torch.zeros(
            len(hidden), self.embedding.shape[1], dtype=hidden.dtype, device=hidden.device
        )
        return RnnHead._Run(self, base_logits, offsets.view(*hidden.shape[:2], -1), state)

    @dataclass
    class _Run:
        head: "RnnHead"
        base_logits: Tensor
        offsets: Tensor  # [B, G, 3r]
        state: Tensor  # [B, r]

        def logits(self, slot: int, previous_ids: Tensor) -> Tensor:
            e = self.head.embedding.index_select(0, previous_ids)
            joint = self.head.from_state_and_token(torch.cat([self.state, e], dim=1))
            gate, candidate, out = joint.add_(self.offsets[:, slot]).chunk(3, dim=1)
            bias = self.head.output(out.tanh())
            self.state = torch.lerp(candidate.tanh(), self.state, gate.sigmoid())
            return self.base_logits[:, slot].add_(bias)
