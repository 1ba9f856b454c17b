"""How much `bench.gpu` measures: on a device, or dry on a CPU with shapes that take no time."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.shapes import Shape

_QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "dtype": "bfloat16",
}
_LLAMA = _QWEN | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-5,
}


Config = dict[str, Any]


def _config(base: Config, layers: int, hidden: int, width: int, heads: int) -> Config:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": width}
    return base | sizes | {"num_attention_heads": heads}


QWEN_8B = _config(_QWEN, 36, 4096, 12_288, 32)
QWEN_32B = _config(_QWEN, 64, 5120, 25_600, 64)
QWEN_06B = _config(_QWEN, 28, 1024, 3072, 16) | {"tie_word_embeddings": True}
LLAMA_70B = _config(_LLAMA, 80, 8192, 28_672, 64)
LLAMA_1B = _config(_LLAMA, 16, 2048, 8192, 32) | {"head_dim": 64, "tie_word_embeddings": True}
_TINY = _config(_QWEN | {"vocab_size": 512, "head_dim": 64}, 2, 64, 128, 8)


@dataclass(frozen=True)
class Grid:
    """Forwards of one shape; all combinations, the smallest first."""

    shape: Shape
    rows: tuple[int, ...]
    tokens: tuple[int, ...]  # of each row: gamma and the anchor
    contexts: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """Every size, by what it is of."""

    device: str
    copied_bytes: int  # to measure the bandwidth
    most_s: float  # of the takes of one forward
    memory_share: float  # of what is free, that keys and values may take
    grids: tuple[Grid, ...]
    drafted_for: tuple[Shape, ...]
    gammas: tuple[int, ...]
    blocks: tuple[int, ...]  # rows times fan-out
    draft_layers: int
    baselines: tuple[tuple[Shape, int], ...]  # with requests at once
    baseline_tokens: int
    sweep: tuple[str, ...]  # flags of bench.sweep
    side_by_side: tuple[str, ...]  # of bench.gpu.side_by_side
    chat_flags: tuple[str, ...]  # of specserve train data
    train_flags: tuple[str, ...]  # of specserve train dspark
    train_steps: int | None  # None: as many as there is time for


@dataclass(frozen=True)
class Given:
    """What a task is told."""

    scale: Scale
    out: Path
    target: str  # of the tasks with a real model
    ends_s: float  # of the monotonic clock; by then it has stopped

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends_s


_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16)
_FEWER = (1, 2, 4, 8, 16)
_8B, _32B = Shape("Qwen3-8B", QWEN_8B), Shape("Qwen3-32B", QWEN_32B)
# Named as in bench.simulate.step_models, which reads what they take.
_06B, _1B = Shape("Qwen3-0.6B", QWEN_06B), Shape("Llama-3.2-1B", LLAMA_1B)
_32B_SHARE = Shape("Qwen3-32B", QWEN_32B, devices=4)
_70B_SHARE = Shape("Llama-3.1-70B", LLAMA_70B, devices=4)
_AT_ONCE = (1, 4, 16, 64)

FULL = Scale(
    device="cuda",
    copied_bytes=4 << 30,
    most_s=0.15,
    memory_share=0.75,  # activations and graphs need some
    grids=(
        Grid(_8B, _AT_ONCE, _TOKENS, (512, 2048, 8192)),
        Grid(_32B_SHARE, _AT_ONCE, _FEWER, (512, 2048)),
        Grid(_06B, (1, 4, 16, 64, 128), (1,), (512,)),
        Grid(_32B, (1, 8, 64), _FEWER, (512, 8192)),
        Grid(_70B_SHARE, _AT_ONCE, _FEWER, (512, 2048)),
        Grid(_1B, (1, 4, 16, 64, 128), (1,), (512,)),
    ),
    drafted_for=(_8B, _32B),
    gammas=(3, 5, 7, 15),
    blocks=(1, 4, 8, 16, 32, 64, 128),
    draft_layers=5,
    baselines=((_8B, 1), (_8B, 16), (_32B, 1)),
    baseline_tokens=48,
    sweep=("--batch-sizes", "1,4,16,64", "--repeats", "2", "--requests", "8", "--max-tokens", "96",
           "--warm-up", "3", "--num-prompts", "26"),
    side_by_side=("--ballast", "1B", "--num-prompts", "4", "--max-tokens", "64"),
    chat_flags=("--rows", "256", "--tokens", "4000000"),
    train_flags=("--layers", "2"),
    train_steps=None,
)  # fmt: skip
_DRY_SHAPE = Shape("tiny", _TINY)
DRY = Scale(
    device="cpu",
    copied_bytes=16 << 20,
    most_s=0.01,
    memory_share=0.1,
    grids=(
        Grid(_DRY_SHAPE, (1, 4), (1, 4), (64,)),
        Grid(Shape("tiny", _TINY, devices=2), (1,), (1,), (32, 64)),
    ),
    drafted_for=(_DRY_SHAPE,),
    gammas=(3,),
    blocks=(1, 4),
    draft_layers=1,
    baselines=((_DRY_SHAPE, 2),),
    baseline_tokens=4,
    sweep=("--batch-sizes", "1", "--repeats", "1", "--requests", "1", "--max-tokens", "12",
           "--warm-up", "0", "--num-prompts", "2", "--unpinned"),
    side_by_side=("--dry",),
    chat_flags=("--rows", "16", "--tokens", "6500", "--max-tokens", "224", "--threads", "1"),
    train_flags=("--layers", "1", "--anchors", "4", "--tokens-per-step", "512", "--threads", "1"),
    train_steps=2,
)  # fmt: skip
