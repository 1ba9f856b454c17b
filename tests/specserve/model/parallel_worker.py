"""One rank of the tensor parallelism test: runs all modes and saves what it computed.

python -m tests.specserve.model.parallel_worker FOLDER RANK SIZE
"""

import itertools
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from specserve.model.forward import make_forward
from specserve.model.parallel import TensorParallel
from specserve.model.torch_forward import TorchForward
from tests import golden_case
from tests.golden import Session
from tests.specserve.model.checkpoints import load

PROMPT = torch.arange(13) * 11 % 64
CHUNKS = (6, 1, 1, 5)
BALLAST = 100_000


def run(
    folder: Path, parallel: TensorParallel, *, deterministic: bool, by_torch: bool
) -> dict[str, torch.Tensor]:
    """Hidden states and, on rank 0, logits of `PROMPT`, fed in `CHUNKS`."""
    golden_case.make_forward = TorchForward if by_torch else make_forward
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
        for deterministic, by_torch in itertools.product((True, False), repeat=2):
            modes = {"deterministic": deterministic, "by_torch": by_torch}
            out = run(folder / checkpoint, parallel, **modes)
            prefix = f"{checkpoint}.{by_torch}.{'exact' if deterministic else 'reduced'}"
            results |= {f"{prefix}.{name}": tensor for name, tensor in out.items()}
    save_file(results, folder / f"out-{size}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
