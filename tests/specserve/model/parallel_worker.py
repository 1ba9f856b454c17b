"""One rank of the tensor parallelism test: runs both modes and saves what it computed.

python -m tests.specserve.model.parallel_worker FOLDER RANK SIZE
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from specserve.model.parallel import TensorParallel
from tests.golden import Session
from tests.specserve.model.checkpoints import load

PROMPT = torch.arange(13) * 11 % 64
CHUNKS = (6, 1, 1, 5)
BALLAST = 100_000


def run(folder: Path, parallel: TensorParallel, *, deterministic: bool) -> dict[str, torch.Tensor]:
    """Hidden states and, on rank 0, logits of `PROMPT`, fed in `CHUNKS`."""
    target = load(folder, parallel=parallel, deterministic=deterministic, ballast=BALLAST)
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
    parallel = TensorParallel(rank, size)
    results = {}
    for checkpoint in ("qwen3", "llama"):
        for deterministic in (True, False):
            out = run(folder / checkpoint, parallel, deterministic=deterministic)
            prefix = f"{checkpoint}.{'exact' if deterministic else 'reduced'}"
            results |= {f"{prefix}.{name}": tensor for name, tensor in out.items()}
    save_file(results, folder / f"out-{size}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
