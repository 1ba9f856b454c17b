"""What compiled forwards refuse, before anything is written."""

import numpy as np
import pytest
import torch

from specserve.backends.cpu.forward import CompiledForward
from specserve.backends.cpu.kernel_arguments import Batch
from specserve.backends.cpu.kernel_layout import KernelLayout
from specserve.models.attention import AttentionBatch
from tests.backends.chosen import can_compile

pytestmark = pytest.mark.skipif(not can_compile(), reason="no numba, or no vectors that we know")


@pytest.fixture
def forward(qwen3):
    """Of contexts of 128 tokens, in 36 blocks and the null block."""
    return CompiledForward(qwen3, num_blocks=37, block_size=16)


def batch_of(counts=(3,), ends=(3,), own=(tuple(range(1, 9)),)):
    return AttentionBatch(np.array(counts), np.array(ends), [np.array(table) for table in own])


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(ends=(129,), own=(range(1, 20),)),
        batch_of(ends=(33,), own=((1, 2),)),
        batch_of((3, 3), (33, 40), ((1, 2), (3, 4, 5))),
        batch_of(ends=(20,), own=((1, 37),)),
        batch_of(ends=(20,), own=((1, -1),)),
        batch_of(ends=(20,), own=((0, 1),)),
        batch_of(ends=(2,)),
        batch_of(counts=(0,), ends=(3,)),
        batch_of(counts=(-3,)),
        batch_of((3, 0), (3, 5), ((1,), (2,))),
        batch_of(counts=(2,)),
        batch_of(counts=(4,), ends=(4,)),
    ],
    ids=[
        "positions beyond the model's",
        "too few blocks",
        "too few blocks beside enough",
        "no such block",
        "a negative block",
        "the null block",
        "more tokens than context",
        "no tokens of the only row",
        "a negative number of tokens",
        "no tokens of one row",
        "fewer tokens than ids",
        "more tokens than ids",
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2])
@torch.inference_mode()
def test_a_batch_of_what_is_not_there_is_refused_and_nothing_written(forward, batch, num_threads):
    torch.set_num_threads(num_threads)
    assert forward.cache.num_blocks == 37
    ids = torch.zeros(3 * len(batch.num_tokens), dtype=torch.int64)
    ids = ids[:3] if 0 in batch.num_tokens else ids
    forward.plan(batch)
    with pytest.raises(IndexError, match="tokens, positions or blocks that are not there"):
        forward.run(ids)
    assert not forward.cache.keys.any()
    assert not forward.cache.values.any()


@torch.inference_mode()
def test_tokens_and_taps_that_are_not_there_are_refused(forward):
    forward.plan(batch_of())
    ids = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(IndexError):
        forward.run(ids + 64)
    for tap in (2, -2):
        with pytest.raises(KeyError, match="of 2 layers"):
            forward.run(ids, (0, tap))
    with pytest.raises(ValueError, match="no tokens"):
        forward.run(ids[:0])
    assert forward.run(ids)[0].isfinite().all()


@torch.inference_mode()
def test_a_call_that_breaks_off_is_no_result(forward):
    """numba loses what a function raises that C has called."""
    forward.plan(batch_of())
    forward._run = lambda *_: None
    with pytest.raises(RuntimeError, match="broke off"):
        forward.run(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    "block", [37, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, -1, 1 << 40))]
)
@torch.inference_mode()
def test_shared_blocks_that_are_not_there_are_refused(forward, block):
    ids, one = torch.zeros(2, dtype=torch.int64), np.array([[1]])
    for shared, is_there in ((2, True), (block, False)):
        # Two tokens behind the five of a shared block, which nobody wrote: zeros.
        forward.lay_out(Batch(np.array([[2, 7, 5, 0]]), one, np.array([[shared]])))
        if is_there:
            assert forward.run(ids)[0].isfinite().all()
        else:
            with pytest.raises(IndexError, match="that are not there"):
                forward.run(ids)


def test_a_record_refuses_what_kernels_would_misread():
    layout = KernelLayout(0)
    right = np.zeros((1, 2), np.int64)
    layout.set_arrays(Batch(right, right, right))
    with pytest.raises(TypeError, match="kernels cannot read int32"):
        layout.set_arrays(Batch(right.astype(np.int32), right, right))
    with pytest.raises(TypeError, match="kernels cannot read int64"):
        layout.set_arrays(Batch(np.zeros((4, 4), np.int64)[:, :2], right, right))
