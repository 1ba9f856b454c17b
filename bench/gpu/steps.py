"""Decoding and verification by a rank's own runner, against the floor that memory sets."""

import gc
import itertools
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch

from bench.gpu.records import Fact, Found, Left, Report, Step
from bench.gpu.scale import Given, Grid, Scale
from bench.gpu.shapes import BLOCK_SIZE, backend_on, bytes_read, runner_of
from specserve.backends.base import Backend
from specserve.models.attention import AttentionBatch
from target_node.batch import ForwardBatch
from target_node.runner import Runner

_TAKES = 9  # at most, of one forward
_NO_TIME = "no time was left"


def measure(given: Given, report: Report) -> None:
    """Every grid in turn, while there is time."""
    scale = given.scale
    backend = backend_on(scale.device)
    bytes_per_s = bandwidth(backend.device, scale.copied_bytes)
    report(Fact(what="a copy reads and writes", value=bytes_per_s / 1e9, unit="GB/s"))
    for grid in scale.grids:
        what = f"{grid.shape.name} on {grid.shape.devices}"
        if given.is_over:
            report(Left(what=what, why=_NO_TIME))
            continue
        began_s = time.monotonic()
        try:
            for found in _of_grid(grid, given, backend, bytes_per_s):
                report(found)
        except torch.OutOfMemoryError as error:
            report(Left(what=what, why=f"does not fit: {_first_line(error)}"))
        report(Fact(what=f"{what}, in all", value=time.monotonic() - began_s, unit="s"))
        give_back(backend)
    # Whose attention it was, and how many forwards were captured.
    count = backend.num_first_calls
    report(Fact(what=backend.description, value=count, unit="shapes captured"))


def bandwidth(device: torch.device, num_bytes: int) -> float:
    """Bytes a second that a copy of a large tensor reads and writes, of the fastest of some."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    taken: list[float] = []
    for _ in range(6):
        began_s = time.perf_counter()
        copy.copy_(source)
        copy[-1].item()  # which a device has to copy first
        taken.append(time.perf_counter() - began_s)
    return 2 * num_bytes / min(taken)


def give_back(backend: Backend) -> None:
    """What a model had that is no longer used."""
    backend.forget()
    gc.collect()
    if backend.device.type == "cuda":
        torch.cuda.empty_cache()


def _of_grid(grid: Grid, given: Given, backend: Backend, bytes_per_s: float) -> Iterator[Found]:
    shape, spec, scale = grid.shape, grid.shape.spec, given.scale
    wanted = max(grid.rows) * (max(grid.contexts) + BLOCK_SIZE)
    runner = runner_of(shape, backend, most_slots=wanted, share=scale.memory_share)
    # The first forwards are the smallest: what a stopped run has, is what is asked for most.
    cells = sorted(
        itertools.product(grid.contexts, grid.rows, grid.tokens), key=lambda cell: cell[0]
    )
    for context, rows, tokens in cells:
        what = f"{shape.name} on {shape.devices}: {rows} rows of {tokens}, context {context}"
        if given.is_over:
            yield Left(what=what, why=_NO_TIME)
            continue
        room = (runner.cache.num_blocks - 1) * BLOCK_SIZE
        if rows * -(-context // BLOCK_SIZE) * BLOCK_SIZE > room:
            yield Left(what=what, why=f"there is memory for the contexts of {room} tokens")
            continue
        try:
            seconds, host_s = timed(runner, batch(spec.vocab_size, rows, tokens, context), scale)
        except torch.OutOfMemoryError as error:
            yield Left(what=what, why=f"does not fit: {_first_line(error)}")
            continue
        yield Step(
            model=shape.name,
            devices=shape.devices,
            num_layers=spec.num_layers,
            rows=rows,
            tokens=tokens,
            context=context,
            seconds=seconds,
            host_s=host_s,
            floor_s=bytes_read(spec, rows * context) / bytes_per_s,
        )


def batch(vocab_size: int, rows: int, tokens: int, context: int) -> ForwardBatch:
    """Rows in blocks of their own; all tokens want logits, as in verification."""
    a_row = -(-context // BLOCK_SIZE)
    counts = np.full(rows, tokens, dtype=np.int64)
    tables = np.arange(1, 1 + rows * a_row, dtype=np.int64).reshape(rows, a_row)
    generator = np.random.default_rng(0)
    return ForwardBatch(
        token_ids=generator.integers(0, vocab_size, rows * tokens),
        logits_index=np.arange(rows * tokens, dtype=np.int64),
        fresh_blocks=np.zeros(0, dtype=np.int64),
        attention=AttentionBatch(counts, np.full(rows, context, dtype=np.int64), list(tables)),
    )


def timed(runner: Runner, work: ForwardBatch, scale: Scale) -> tuple[float, float]:
    """Median seconds until a logit is on the host, and until the host had asked for it.

    The first forwards capture and allocate what later ones of their shape have, and do not count.
    """
    waited: list[float] = []
    asked: list[float] = []
    ends_s = float("inf")
    for take in range(-2, _TAKES):
        began_s = time.perf_counter()
        logits = runner.forward(work)
        assert logits is not None  # there is one rank
        asked_s = time.perf_counter()
        logits[-1, 0].item()
        if take == -1:
            ends_s = time.perf_counter() + scale.most_s
        if take >= 0:
            asked.append(asked_s - began_s)
            waited.append(time.perf_counter() - began_s)
            if time.perf_counter() > ends_s:
                break
    return statistics.median(waited), statistics.median(asked)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]
