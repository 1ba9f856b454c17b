"""Text that the target itself writes at temperature 1, to train drafters on.

In service a drafter continues the target's own text, and published recipes train on nothing else.
Rows begin with a prompt from a token stream. Every finished part is a file, so that an interrupted
run goes on where it stopped; parts belong to the exact weights that wrote them.
"""

import hashlib
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from draft_node.training.frozen_target import DenseAttention, FrozenTarget
from draft_node.training.progress import each

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelfTextConfig:
    """The shape of one part: `rows` texts of `length` tokens, prompts included."""

    rows: int = 128
    length: int = 512
    shortest_prompt: int = 16
    longest_prompt: int = 96
    seed: int = 0


class StepwiseAttention(DenseAttention):
    """`DenseAttention` that remembers: a first forward of any length, then one token at a time."""

    def __init__(self, target: FrozenTarget, num_rows: int, length: int) -> None:
        spec = target.spec
        super().__init__(num_rows, spec.num_kv_heads, target.dtype)
        shape = (2, spec.num_layers, num_rows, spec.num_kv_heads, length, spec.head_dim)
        self._entries = torch.empty(shape, dtype=target.dtype, device=target.device)
        self.length = 0  # tokens of a row that are known; whoever runs the forward moves it on

    def run(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `DenseAttention.run`, for tokens at `length` and beyond."""
        fresh = torch.stack([self.by_row(k), self.by_row(v)])
        end = self.length + fresh.shape[3]
        mine = self._entries[:, layer_index]
        mine[:, :, :, self.length : end] = fresh
        if self.length == 0:
            return super().run(layer_index, q, k, v)
        assert end == self.length + 1, "one token at a time"
        # The heads that share a key head are its queries: nothing has to be repeated.
        queries = q.view(*fresh.shape[1:3], -1, q.shape[-1]).to(mine.dtype)
        keys, values = mine[:, :, :, :end]
        mixed = F.scaled_dot_product_attention(queries, keys, values)
        return mixed.reshape(q.shape).to(q.dtype)


@torch.inference_mode()
def continue_rows(
    target: FrozenTarget, prompts: Tensor, prompt_lens: Tensor, generator: torch.Generator
) -> Tensor:
    """Rows [R, L] int64 of which the first prompt_lens [R] tokens are given, the rest sampled."""
    tokens = prompts.clone()
    rows, length = tokens.shape
    attention = StepwiseAttention(target, rows, length)
    start = int(prompt_lens.min())
    fresh = tokens[:, :start]
    for place in each(f"the target writes {rows} texts, tokens of each", range(start, length)):
        count = fresh.shape[1]
        positions = torch.arange(attention.length, attention.length + count, device=tokens.device)
        hidden, _ = target.model.forward(fresh.flatten(), positions.repeat(rows), attention)
        attention.length += count
        logits = target.model.logits(hidden.view(rows, count, -1)[:, -1])
        assert logits is not None, "a single rank has the logits"
        drawn = _draw(logits, generator)
        tokens[:, place] = torch.where(place < prompt_lens, tokens[:, place], drawn)
        fresh = tokens[:, place : place + 1]
    return tokens


def _draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token of each row's distribution at temperature 1: logits [R, V] -> [R].

    By inverting cumulated weights: torch.multinomial draws a number for every token of the
    vocabulary, which was a quarter of the time.
    """
    weights = logits.softmax(-1).cumsum(-1)
    where = torch.rand(len(logits), 1, generator=generator, device=logits.device)
    drawn = torch.searchsorted(weights, where * weights[:, -1:], right=True)
    return drawn[:, 0].clamp(max=logits.shape[1] - 1)


def write_part(target: FrozenTarget, stream: np.ndarray, config: SelfTextConfig) -> np.ndarray:
    """One part [rows * length]: prompts drawn from `stream` by the seed, continued."""
    rng = np.random.default_rng(config.seed)
    length = min(config.length, target.spec.max_position_embeddings)
    longest = min(config.longest_prompt, length - 1, len(stream) - 1)
    shortest = min(config.shortest_prompt, longest)
    starts = rng.integers(0, len(stream) - longest, size=config.rows)
    rows = np.zeros((config.rows, length), dtype=np.int64)
    for row, start in enumerate(starts):
        rows[row, :longest] = stream[start : start + longest]
    prompt_lens = rng.integers(shortest, longest + 1, size=config.rows)
    generator = torch.Generator(target.device).manual_seed(config.seed)
    written = continue_rows(
        target,
        torch.from_numpy(rows).to(target.device),
        torch.from_numpy(prompt_lens).to(target.device),
        generator,
    )
    return written.flatten().cpu().numpy().astype(stream.dtype)


class Pool:
    """The parts that one target wrote, in a folder named for its weights."""

    def __init__(
        self, target: FrozenTarget, work: Path, config: SelfTextConfig, most: int | None = None
    ) -> None:
        """Parts have no more rows than `most` tokens of one stream want."""
        length = min(config.length, target.spec.max_position_embeddings)
        if most is not None:
            config = replace(config, rows=min(config.rows, -(-most // length)))
        self._target, self._config = target, config
        self.folder = work / "self-text" / weights_digest(target.folder)[:12]

    def stream(self, name: str, prompts: np.ndarray, num_tokens: int) -> np.ndarray:
        """At least num_tokens tokens, in whole parts, of text that began with `prompts`' own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        parts, total = list[np.ndarray](), 0
        while total < num_tokens:
            parts.append(self._part(name, prompts, len(parts)))
            total += len(parts[-1])
        return np.concatenate(parts)

    def _part(self, name: str, prompts: np.ndarray, number: int) -> np.ndarray:
        config = self._config
        shape = f"{config.rows}x{config.length}-{config.seed}"
        path = self.folder / f"{name}-{shape}-{number:03}.npy"
        if path.exists():
            return np.load(path, mmap_mode="r")
        before = time.perf_counter()
        seed = config.seed * 1_000_003 + number
        settings = SelfTextConfig(
            config.rows, config.length, config.shortest_prompt, config.longest_prompt, seed
        )
        part = write_part(self._target, prompts, settings)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            np.save(file, part)
        os.replace(temporary, path)
        speed = len(part) / (time.perf_counter() - before)
        log.info("self text: %s, %d tokens at %.0f tok/s", path.name, len(part), speed)
        return part


def weights_digest(folder: Path) -> str:
    """Hexadecimal digest of a model's configuration and weights; `folder` may be a GGUF file."""
    digest = hashlib.sha256()
    files = [folder / "config.json", *folder.glob("*.safetensors")]
    for path in sorted(files) if folder.is_dir() else [folder]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
