"""Captured forwards: padded to few shapes, replayed with what is in memory alone."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.backends.cuda import graphs as cuda_graphs
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.cuda.graphs import BUCKETS
from specserve.backends.torch.linear import PlainLinear
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from target_node.blocks import BlockPool
from target_node.planning import step_profile
from target_node.runner import Runner
from tests.device.growing_rows import BLOCK, Rows, assert_near
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.tape import Tape
from tests.device.test_target import finished
from tests.device.workload import both_kinds
from tests.device.worlds import target_on_device
from tests.exactness.speculative import Models
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.target_node.in_process import InProcessTarget

DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.bfloat16),
]
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.1}


@pytest.fixture(params=[QWEN3, LLAMA], ids=["qwen3", "llama"])
def make(cuda: PretendedCuda, tmp_path, request) -> Callable[..., Rows]:
    folder = write_checkpoint(tmp_path, request.param, max_position_embeddings=512)

    def make(
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype = torch.float32,
        graphs: object | None = None,
    ) -> Rows:
        model = load_model(
            folder,
            dtype=dtype,
            backend=choose_backend(DEVICE),
            parallel=TensorParallel(),
            deterministic=False,
        )
        return Rows(model, kv_dtype, graphs or Tape(cuda))

    return make


@pytest.mark.parametrize(("dtype", "kv_dtype"), DTYPES)
def test_what_is_replayed_is_what_would_have_been_run(
    make: Callable[..., Rows], dtype: torch.dtype, kv_dtype: torch.dtype
):
    rows, near = make(dtype, kv_dtype), max(NEAR[dtype], NEAR[kv_dtype])
    forward = rows.forward
    assert_near(forward(r0=40, r1=5), near)  # a piece of a prompt: of no shape
    assert rows.captured.num_graphs == 0
    for _ in range(3):
        assert_near(forward(r0=1), near)
    assert rows.captured.num_graphs == 1
    assert_near(forward(r1=1), near)  # another row: the same graph
    assert rows.captured.num_graphs == 1
    assert_near(forward(r0=4, r1=1), near)
    rows.forget(0, 3)
    assert_near(forward(r0=3, r1=2), near)
    assert_near(forward(r1=4, r0=4), near)
    assert rows.captured.num_graphs == 2
    assert_near(forward(r2=7, r3=1, r4=3), near)  # new rows, and one that is none
    assert_near(forward(r4=2, r2=1, r3=5, r5=8), near)
    assert rows.captured.num_graphs == 3
    assert_near(forward(r0=100), near)
    assert_near(forward(r0=2, r1=2), near)  # past the first tile of keys
    assert rows.captured.num_graphs == 4
    torch.testing.assert_close(*rows.kept(), atol=near, rtol=near)
    assert not rows.captured.cache.keys.cpu()[:, :, :BLOCK].any()  # the null block


@pytest.mark.slow
def test_many_random_batches(make: Callable[..., Rows]):
    rows, rng = make(), np.random.default_rng(1)
    for _ in range(40):
        chosen = rng.permutation(9)[: rng.integers(1, 10)]
        assert_near(rows.forward(**{f"r{row}": int(rng.integers(1, 9)) for row in chosen}), 1e-4)
        rows.forget(chosen[0], int(rng.integers(0, 2)))
    assert 3 <= rows.captured.num_graphs <= 30


def test_what_is_tapped_belongs_to_a_graph(make: Callable[..., Rows]):
    rows = make()
    for taps in ((), (1,), (1, -1), (-1, 1), (1,), ()):
        found = rows.forward(taps, r0=1)
        assert len(found[1]) == 1 + len(taps)
        assert_near(found, 1e-4)
    assert rows.captured.num_graphs == 4


def test_no_more_are_kept_than_there_is_room_for(
    make: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch, cuda: PretendedCuda
):
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    tape = Tape(cuda)
    rows = make(graphs=tape)
    for counts in ({"r0": 1}, {"r0": 2}, {"r0": 1}, {"r0": 4}, {"r0": 1}, {"r0": 2}):
        assert_near(rows.forward(**counts), 1e-4)
    assert rows.captured.num_graphs == 2
    assert tape.num_captured == 4  # one token thrice, two tokens twice: forgotten in between


def test_where_nothing_can_be_captured_forwards_are_run(
    make: Callable[..., Rows], caplog: pytest.LogCaptureFixture
):
    class Broken:
        def capture(self, function: Callable[[], None]) -> None:
            function()
            raise RuntimeError("operation not permitted when stream is capturing")

    rows = make(graphs=Broken())
    for counts in ({"r0": 1, "r1": 3}, {"r0": 1, "r1": 3}, {"r0": 1}):
        assert_near(rows.forward(**counts), 1e-5)
    torch.testing.assert_close(*rows.kept(), atol=1e-5, rtol=1e-5)
    assert rows.captured.num_graphs == 0
    assert sum(each.name == cuda_graphs.__name__ for each in caplog.records) == 1
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "not permitted" in record.getMessage()


class Failing:
    """Records so many functions, and no other."""

    def __init__(self, cuda: PretendedCuda, count: int) -> None:
        self._tape = Tape(cuda)
        self._count = count

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        if self._tape.num_captured == self._count:
            raise torch.OutOfMemoryError("out of memory")
        return self._tape.capture(function)


def test_a_failure_forgets_what_was_captured_before(make: Callable[..., Rows], cuda: PretendedCuda):
    rows = make(graphs=Failing(cuda, 2))
    for num_tokens, kept in ((1, 1), (2, 2), (4, 0), (1, 0)):
        assert_near(rows.forward(r0=num_tokens), 1e-4)
        assert rows.captured.num_graphs == kept
    torch.testing.assert_close(*rows.kept(), atol=1e-4, rtol=1e-4)


def test_several_ranks_record_all_or_end(
    make: Callable[..., Rows], cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
):
    """One that went on without would exchange other sizes than the rest."""
    rows = make(graphs=Failing(cuda, 0))
    monkeypatch.setattr(rows.captured._graphs, "_may_fail", False)
    with pytest.raises(torch.OutOfMemoryError):
        rows.forward(r0=1)


def test_all_graphs_of_a_process_are_forgotten_at_once(make: Callable[..., Rows]):
    rows = make()
    rows.forward(r0=1)
    assert rows.captured.num_graphs == 1
    cuda_graphs.forget()
    assert rows.captured.num_graphs == 0
    assert_near(rows.forward(r0=1), 1e-4)


def counted(forward: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Of how many rows the products were that it began."""
    sizes, call = set(), PlainLinear.__call__

    def count(self: PlainLinear, x: torch.Tensor) -> torch.Tensor:
        sizes.add(len(x))
        return call(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(PlainLinear, "__call__", count)
        forward()
    return sizes


def test_tokens_of_a_ragged_round_are_computed_as_one_list(
    make: Callable[..., Rows], monkeypatch: pytest.MonkeyPatch
):
    """15 by the reference, 16 by a graph; eight rows of eight would be 64."""
    rows = make()
    ragged = {"r0": 8} | {f"r{row}": 1 for row in range(1, 8)}
    assert counted(lambda: rows.forward(**ragged), monkeypatch) == {15, 16}
    assert rows.captured.num_computed == 16
    assert rows.plain.num_computed == 15
    assert rows.captured.num_graphs == 1
    turned = {"r7": 3, "r1": 6} | {f"r{row}": 1 for row in range(2, 7)}
    found = []  # other verify lengths, and a row less: the same graph
    assert counted(lambda: found.append(rows.forward(**turned)), monkeypatch) == {14}
    assert_near(found[0], 1e-4)
    assert rows.captured.num_graphs == 1
    rows.forward(r8=40)  # a piece of a prompt
    assert rows.captured.num_computed == 40


def test_rows_beyond_a_tile_are_captured(make: Callable[..., Rows]):
    """A chain of 16 and its anchor; and what a row may bring at most."""
    rows = make()
    for counts in ({"r0": 17, "r1": 1}, {"r0": 20, "r1": 2}, {"r2": 32, "r0": 3}, {"r3": 31}):
        assert_near(rows.forward(**counts), 1e-4)
    assert rows.captured.num_graphs == 3
    torch.testing.assert_close(*rows.kept(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_runner_s_table_has_the_steps_of_its_forwards(
    cuda: PretendedCuda, tmp_path: Path, deterministic: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_profile, "_MOST_S", 60.0)  # on a busy machine, too
    backend = CudaGraphBackend(DEVICE)
    runner = Runner(
        load_model(
            write_checkpoint(tmp_path, QWEN3, max_position_embeddings=512),
            dtype=torch.float32,
            backend=backend,
            parallel=TensorParallel(),
            deterministic=deterministic,
        ),
        backend=backend,
        num_blocks=80,
        block_size=16,
        deterministic=deterministic,
    )
    assert runner.steps.edges == (() if deterministic else BUCKETS)
    pool = BlockPool(80, 16, prefix_cache=True)
    step_profile.measure(runner.steps, runner.forward, pool, max_tokens=48, rehearse=True)
    if not deterministic:
        assert list(runner.steps.cells) == [edge for edge in BUCKETS if edge <= 48]
        assert cuda_graphs.num_captured() > len(runner.steps.cells)


def graph(target: InProcessTarget, tape: Tape) -> InProcessTarget:
    target.runner.passes = CapturedForward(target.runner.model, target.runner.passes, tape)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "dspark vanilla"])
def test_a_target_says_what_it_says_without(cuda: PretendedCuda, models: Models, name: str | None):
    tape = Tape(cuda)
    asked = partial(both_kinds, max_tokens=12)
    plain = finished(target_on_device(models), asked())["samples"]
    found = finished(graph(target_on_device(models, name), tape), asked())["samples"]
    assert tape.num_captured > 2
    assert {key: tokens for key, (tokens, *_) in found.items()} == {
        key: tokens for key, (tokens, *_) in plain.items()
    }
