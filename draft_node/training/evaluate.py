"""Held-out loss in nats per token and bits per byte, and how much greedy text repeats itself."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from draft_node.training.batches import tokens_of


@torch.no_grad()
def stream_loss(
    model: torch.nn.Module,
    stream: np.ndarray,
    length: int,
    rows: int = 8,
    columns: Callable[[Tensor], Tensor] | None = None,
) -> float:
    """Mean nats a learned token over consecutive windows of `length` tokens; float32 arithmetic.

    `model`: token ids [B, T] to logits [B, T, DV]. `columns` finds tokens' places among these, -1
    for those without one, which are left out; None: they are their ids.
    """
    device = next(model.parameters()).device
    total, count = 0.0, 0
    starts = list(range(0, len(stream) - length, length))
    for first in range(0, len(starts), rows):
        block = np.stack([stream[s : s + length + 1] for s in starts[first : first + rows]])
        ids = torch.from_numpy(block.astype(np.int64)).to(device)
        logits, labels = model(tokens_of(ids[:, :-1])).float(), ids[:, 1:].flatten()
        found = labels if columns is None else columns(tokens_of(labels))
        found = torch.where(labels < 0, -1, found)
        nats = F.cross_entropy(logits.flatten(0, 1), found, reduction="sum", ignore_index=-1)
        total += nats.item()
        count += int((found >= 0).sum())
    return total / max(1, count)


def bits_per_byte(nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    """Loss that does not depend on the tokenizer."""
    return nats_per_token / math.log(2) * num_tokens / num_bytes


@torch.no_grad()
def greedy(folder: Path, prompts: Sequence[Sequence[int]], num_new: int) -> list[list[int]]:
    """Greedy continuations by the model in `folder`, num_new tokens each, float32.

    Runs in transformers: it has a cache, and it checks that the folder loads there.
    """
    # Imported here: training itself does without transformers.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # go on behind the end of a text
    length = max(map(len, prompts))
    ids = torch.zeros(len(prompts), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, length - len(prompt) :] = torch.tensor(prompt)
        mask[row, length - len(prompt) :] = 1
    out = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        ids, attention_mask=mask, max_new_tokens=num_new, do_sample=False
    )
    return out[:, length:].tolist()


def distinct_ratio(ids: Sequence[int], order: int = 4) -> float:
    """Share of n-grams that are distinct; 1.0 means that nothing repeats."""
    grams = [tuple(ids[i : i + order]) for i in range(len(ids) - order + 1)]
    return len(set(grams)) / max(1, len(grams))
