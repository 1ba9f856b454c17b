"""How many tokens a forward of ragged rows computes: those that come, or the edge that they reach.

Eight rows of which one has a block of seven verified, and others none, are 15 tokens. A rectangle
of rows would have 64.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch

from specserve.backends.base import Backend
from specserve.backends.cpu.kernel_arguments import Tokens
from specserve.backends.cpu.kernel_layout import KernelLayout
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.linear import PlainLinear, TiledLinear
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from target_node.planning.step_table import ends_of_steps
from tests.backends.chosen import CPU
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

RAGGED = [[8, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1], [3, 1, 6, 2], [5], [17, 1]]


@contextmanager
def computed_rows() -> Iterator[set[int]]:
    """Of how many rows products are, or what a compiled forward is given."""
    found: set[int] = set()
    set_arrays = KernelLayout.set_arrays

    def counting(kind: type) -> mock._patch:
        call = kind.__call__

        def count(self, x: torch.Tensor) -> torch.Tensor:
            found.add(len(x))
            return call(self, x)

        return mock.patch.object(kind, "__call__", count)

    def count_tokens(self: KernelLayout, arrays) -> None:
        if isinstance(arrays, Tokens):
            found.update((len(arrays.x), len(arrays.hidden)))
        set_arrays(self, arrays)

    patched = mock.patch.object(KernelLayout, "set_arrays", count_tokens)
    with counting(PlainLinear), counting(TiledLinear), patched:
        yield found


def assert_is_flat(backend: Backend, folder, *, deterministic: bool = False) -> None:
    """What it computes of each of `RAGGED`, and what it says of that."""
    model = load_model(
        write_checkpoint(folder, QWEN3, max_position_embeddings=512),
        dtype=torch.float32,
        backend=backend,
        parallel=TensorParallel(),
        deterministic=deterministic,
    )
    forward = backend.make_forward(model, num_blocks=40, block_size=16, deterministic=deterministic)
    edges = np.array(backend.step_edges(deterministic=deterministic), dtype=np.int64)
    for counts in RAGGED:
        num_tokens = sum(counts)
        tables = [np.arange(1 + 4 * row, 5 + 4 * row) for row in range(len(counts))]
        batch = AttentionBatch(np.array(counts), np.array(counts) + 20, tables)
        forward.plan(batch)
        with computed_rows() as found:
            hidden, _ = forward.run(
                torch.zeros(num_tokens, dtype=torch.int64, device=backend.device)
            )
        (end,) = ends_of_steps(edges, np.array([num_tokens])).tolist()
        assert found == {end}
        assert forward.num_computed == end
        assert len(hidden) == num_tokens


def test_a_ragged_batch_is_one_list_of_tokens(both: tuple[Backend, Backend], tmp_path):
    """With its edge by graphs; as it is by all others."""
    for backend in both:
        has_edges = backend.name == "cuda"
        assert bool(backend.step_edges(deterministic=False)) is has_edges
        assert backend.step_edges(deterministic=True) == ()
        assert_is_flat(backend, tmp_path)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_reference_on_a_cpu_pads_no_row(tmp_path, deterministic: bool):
    """Deterministic products are cut into tiles of the whole list behind this."""
    assert_is_flat(TorchBackend(CPU), tmp_path, deterministic=deterministic)
