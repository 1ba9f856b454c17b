"""The same forward on a CUDA device: paged attention, packed rows, logits close to the CPU's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.model.attention import AttentionBatch
from specserve.model.loader import load_model
from specserve.model.parallel import TensorParallel
from target_node.batch import ForwardBatch
from target_node.runner import Runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = [(1, 40), (8, 64), (33, 33), (5, 300)]  # (new tokens, context length)


def batch(vocab_size: int) -> ForwardBatch:
    rng = np.random.default_rng(0)
    counts = np.array([count for count, _ in ROWS])
    tables = [np.arange(1 + 40 * i, 1 + 40 * i + 40) for i in range(len(ROWS))]
    plan = AttentionBatch(counts, np.array([end for _, end in ROWS]), tables)
    token_ids = rng.integers(0, vocab_size, counts.sum())
    last = np.cumsum(counts) - 1
    return ForwardBatch(token_ids, last, np.zeros(0, np.int64), plan)


@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_on_cuda_agree_with_the_cpu(embedded_target: Path, deterministic: bool):
    logits = {}
    for device in ("cpu", "cuda"):
        model = load_model(
            embedded_target,
            dtype=torch.float32,
            device=torch.device(device),
            parallel=TensorParallel(),
            deterministic=deterministic,
        )
        runner = Runner(model, num_blocks=200, block_size=16, deterministic=deterministic)
        logits[device] = runner.forward(batch(model.config.vocab_size)).cpu()
    difference = (logits["cpu"] - logits["cuda"]).abs().max().item()
    assert difference < 2e-3, f"largest logit difference {difference:.2e}"
