"""One rank of the tensor parallelism test: runs all modes and saves what it computed.

python -m tests.specserve.models.parallel_worker FOLDER RANK SIZE
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from specserve.backends.torch.backend import TorchBackend
from specserve.models.parallel import TensorParallel
from tests import golden_case
from tests.golden import Session
from tests.specserve.models import checkpoints
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load

REFERENCE = TorchBackend(torch.device("cpu"))
PROMPT = torch.arange(45) * 11 % 64
CHUNKS = (6, 1, 3, 35)
BALLAST = {"nine": 150_000}  # a layer more
CHECKPOINTS = {
    "qwen3": QWEN3,
    "llama": LLAMA,
    # SmolLM2-135M's proportions: nothing but its vocabulary and widths is a power of two.
    "nine": {
        **LLAMA,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 72,
        "intermediate_size": 192,
        "vocab_size": 96,
        "tie_word_embeddings": True,
    },
    # Nothing divides.
    "four": {
        **QWEN3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 37,
        "intermediate_size": 53,
        "vocab_size": 67,
        "tie_word_embeddings": False,
    },
}
WAYS = ("compiled", "torch between", "uncompiled")


class Mode(NamedTuple):
    checkpoint: str
    way: str  # of `WAYS`
    dtype: torch.dtype
    deterministic: bool

    def __str__(self) -> str:
        kind = "exact" if self.deterministic else "reduced"
        return f"{self.checkpoint}.{self.way}.{self.dtype}.{kind}"


def modes() -> Iterator[Mode]:
    """Each costs hundreds of collectives, and a machine may have fewer cores than ranks."""
    single = torch.float32
    for checkpoint in ("qwen3", "llama"):
        yield Mode(checkpoint, "compiled", single, deterministic=True)
    for checkpoint in ("nine", "four"):
        for way in WAYS:
            yield Mode(checkpoint, way, single, deterministic=True)
        for way in ("compiled", "uncompiled"):
            yield Mode(checkpoint, way, single, deterministic=False)
        for way in ("compiled", "torch between"):
            yield Mode(checkpoint, way, torch.bfloat16, deterministic=True)


def run(folder: Path, parallel: TensorParallel, mode: Mode) -> dict[str, torch.Tensor]:
    """Hidden states and, on rank 0, logits of `PROMPT`, fed in `CHUNKS`."""
    with ExitStack() as stack:
        if mode.way != "compiled":
            stack.enter_context(mock.patch.object(golden_case, "BACKEND", REFERENCE))
        if mode.way == "uncompiled":
            stack.enter_context(mock.patch.object(checkpoints, "BACKEND", REFERENCE))
        target = load(
            folder / mode.checkpoint,
            parallel=parallel,
            deterministic=mode.deterministic,
            dtype=mode.dtype,
            ballast=BALLAST.get(mode.checkpoint, 0),
        )
        session = Session(target, len(PROMPT))
        hidden = torch.cat([session.feed(chunk)[0] for chunk in PROMPT.split(CHUNKS)])
    logits = target.logits(hidden)
    assert (logits is not None) == (parallel.rank == 0)
    return {"hidden": hidden} if logits is None else {"hidden": hidden, "logits": logits}


def main() -> None:
    folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = f"file://{folder}/store-{size}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    results = {
        f"{mode}.{name}": tensor
        for mode in modes()
        for name, tensor in run(folder, TensorParallel(rank, size), mode).items()
    }
    save_file(results, folder / f"out-{size}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
