"""The same forward on a CUDA device: paged attention, packed rows, logits close to the CPU's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.backends.torch.fixed_attention import FixedAttention
from specserve.models.attention import AttentionBatch
from specserve.models.dealing import deal_heads
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from target_node.batch import ForwardBatch
from target_node.runner import Runner
from tests.specserve.models.attended import LENGTHS, NUM_HEADS, NUM_KV_HEADS, Rows, differing

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
            backend=choose_backend(torch.device(device)),
            parallel=TensorParallel(),
            deterministic=deterministic,
        )
        runner = Runner(
            model,
            backend=choose_backend(torch.device(device)),
            num_blocks=200,
            block_size=16,
            deterministic=deterministic,
        )
        logits[device] = runner.forward(batch(model.config.vocab_size)).cpu()
    difference = (logits["cpu"] - logits["cuda"]).abs().max().item()
    assert difference < 2e-3, f"largest logit difference {difference:.2e}"


def fixed(cache, num_heads):
    return FixedAttention(cache, num_heads=num_heads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_fixed_attention_do_not_depend_on_the_company_or_ranks(dtype: torch.dtype):
    device = torch.device("cuda")
    rows = Rows(device, fixed, dtype=dtype)
    assert differing(rows) == []
    whole = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    expected = torch.cat(rows.attend(whole))
    for num_ranks in range(2, NUM_HEADS + 1):
        parts = [
            torch.cat(Rows(device, fixed, heads=heads, dtype=dtype).attend(whole))
            for heads in deal_heads(NUM_HEADS, NUM_KV_HEADS, num_ranks)
        ]
        assert torch.equal(torch.cat(parts, dim=1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_logits_do_not_depend_on_the_company(embedded_target: Path, dtype: torch.dtype):
    """Of all tokens of two prompts: alone, together, in chunks, beside others."""
    device = torch.device("cuda")
    model = load_model(
        embedded_target,
        dtype=dtype,
        backend=choose_backend(device),
        parallel=TensorParallel(),
        deterministic=True,
    )
    runner = Runner(
        model,
        backend=choose_backend(device),
        num_blocks=200,
        block_size=16,
        deterministic=True,
    )
    tables = [np.arange(1 + 40 * i, 1 + 40 * (i + 1)) for i in range(4)]
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, (4, 512))

    def logits(*pieces: tuple[int, int, int]) -> list[torch.Tensor]:
        """Of all tokens of each piece: row, first token, end."""
        rows, firsts, ends = (np.array(x) for x in zip(*pieces, strict=True))
        plan = AttentionBatch(ends - firsts, ends, [tables[row] for row in rows])
        flat = np.concatenate([tokens[row, first:end] for row, first, end in pieces])
        work = ForwardBatch(flat, np.arange(len(flat)), np.zeros(0, np.int64), plan)
        found = runner.forward(work)
        assert found is not None
        return list(found.cpu().split((ends - firsts).tolist()))

    (long,), (short,) = logits((0, 0, 300)), logits((1, 0, 130))
    assert long.std() > 0.1
    together = logits((2, 0, 70), (0, 0, 300), (1, 0, 130), (3, 0, 12))
    assert torch.equal(together[1], long)
    assert torch.equal(together[2], short)
    chunks = [logits((0, at, min(at + 77, 300)), (3, 12, 13))[0] for at in range(0, 300, 77)]
    assert torch.equal(torch.cat(chunks), long)
    for size in (1, 2, 5, 8, 17):
        few = logits((1, 130 - size, 130), (3, 12, 13), (0, 300 - size, 300), (2, 60, 70))
        assert torch.equal(few[0], short[-size:])
        assert torch.equal(few[2], long[-size:])
