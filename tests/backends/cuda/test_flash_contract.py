"""What is assumed of flashinfer, asked of the installed one, on a machine without CUDA.

Its wrappers are its own, in Python; in place of the compiled modules that they call stands the
definition of what those do with the tables that reach them. Skipped where it is not installed:
`pip install 'flashinfer-python>=0.6.8,<0.7'` (its wheel, apache-tvm-ffi and nvidia-ml-py are all
that it needs to be imported).
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from specserve.backends.cuda import flash as flash_module
from specserve.backends.cuda.flash import DTYPES, HEAD_DIMS, VERSIONS, FixedSize, Flash
from specserve.backends.cuda.flash_shape import FlashShape
from specserve.backends.cuda.fused_trial import LayerSizes, trial_of_layers
from specserve.backends.cuda.page_tables import PageTables
from tests.backends.cuda.layouts import CPU, Pool, heads_of, random_batch
from tests.backends.cuda.paged_reference import attend, merged
from tests.device.flash_stand_in import StandIn, bound
from tests.device.pretended import DEVICE, PretendedCuda

flashinfer: Any = pytest.importorskip("flashinfer", reason="flashinfer is not installed")

CAUSAL, HND = 1, 1  # codes that kernels are given
_EMPTY = torch.empty


class Compiled:
    """What a wrapper calls: `plan` once a forward, `paged_run` or `run` a layer."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.planned: list[tuple] = []
        self.names: set[str] = set()

    def plan(self, *args: Any) -> list[int]:
        self.planned.append(args)
        return [0]

    def paged_run(self, *args: Any) -> None:
        """Of prefill, and of decoding on tensor cores."""
        q, keys, values, *tables, out, lse, mask_mode, layout, window, _ = args[3:16]
        custom_mask, sm_scale = args[16], args[23]
        assert (layout, window, custom_mask) == (HND, -1, None)
        self._attend(q, (keys, values), tables, out, lse, mask_mode == CAUSAL, sm_scale)

    def run(self, *args: Any) -> None:
        """Of decoding without tensor cores."""
        q, keys, values, *tables, out, lse, layout, window, _ = args[3:14]
        assert (layout, window) == (HND, -1)
        rows = torch.arange(len(q) + 1, dtype=torch.int32)
        self._attend(q, (keys, values), [rows, *tables], out, lse, False, args[16])

    def _attend(self, q, pages, tables, out, lse, causal: bool, scale: float) -> None:
        qo_indptr, kv_indptr, indices, last = (x.numpy() for x in tables)
        given = PageTables(qo_indptr, kv_indptr, indices[: kv_indptr[-1]], last, self._page_size)
        found, sums = attend(q, *pages, given, causal=causal, scale=scale)
        out.copy_(found)
        if lse is not None:
            lse.copy_(sums)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Compiled]]:
    """Modules by what asked for them, of pages of 4; whatever looks for a device finds none."""
    modules = {name: Compiled(4) for name in ("prefill", "decode")}

    def module_of(name: str, uri_of: Callable[..., str]) -> Any:
        def get(*args: Any) -> Compiled:
            modules[name].names.add(uri_of(*args))
            return modules[name]

        return get

    jit = flashinfer.jit.attention.modules
    prefill = module_of("prefill", jit.get_batch_prefill_uri)

    def merge(v, s, other, other_s, mask) -> None:
        for own, x in zip((v, s), merged(v, s, other, other_s), strict=True):
            own.copy_(x)

    def empty(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return _EMPTY(*sizes, **options)

    monkeypatch.setattr(flash_module, "WORKSPACE_BYTES", 1 << 20)
    monkeypatch.setattr(torch.cuda, "Event", mock.Mock)
    monkeypatch.setattr(torch, "empty", empty)
    for module in (flashinfer.prefill, flashinfer.decode):
        monkeypatch.setattr(module, "device_support_pdl", lambda _: False)
        monkeypatch.setattr(module, "get_batch_prefill_module", prefill)
    decode = module_of("decode", jit.get_batch_decode_uri)
    monkeypatch.setattr(flashinfer.decode, "get_batch_decode_module", decode)
    cascade = SimpleNamespace(merge_state_in_place=merge)
    monkeypatch.setattr(flashinfer.cascade, "get_cascade_module", lambda: cascade)
    return modules


def half(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.to(torch.bfloat16) for x in tensors]


@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_its_wrappers_hand_on_what_they_are_planned_with(
    compiled: dict[str, Compiled],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_fixed: bool,
    ratio: int,
):
    source, flash, seen = random.Random(3), Flash(CPU, flashinfer), set()
    pool = Pool.of(4, 2, ratio, head_dim=64)
    pool.cache.dtype = torch.bfloat16
    pages = tuple(half(*pool.cache.pages(0)))
    heads = heads_of(pool.cache, num_heads=2 * ratio, scale=0.3)
    for _ in range(12):
        batch = random_batch(source, 4)
        shape = FlashShape.of(batch, 4)
        assert shape is not None
        tables = PageTables.of_batch(batch, 4)
        fixed = None
        if is_fixed:
            tables = tables.padded(shape.num_rows, shape.num_tokens)
            fixed = FixedSize(shape.num_rows, torch.full((400,), 399, dtype=torch.int32))
        kind = "decode" if tables.is_decode else source.choice(["causal", "whole"])
        kernel = getattr(flash, kind)(heads, fixed)
        (q,) = half(pool.tokens(tables.num_queries)[0])
        for _ in range(2):  # planned again, and run twice
            kernel.plan(tables)
            found, sums = kernel.run_with_sums(q, pages)
            expected, of_all = attend(q, *pages, tables, causal=kind == "causal", scale=0.3)
            assert torch.equal(found, expected)
            torch.testing.assert_close(sums, of_all)
            assert torch.equal(kernel.run(q, pages), expected)
        seen.add(kind)
    assert seen == {"decode", "causal", "whole"}
    assert bool(compiled["decode"].planned) is (ratio == 2)
    assert len({len(args) for args in compiled["prefill"].planned}) == 1
    context = flashinfer.jit.core.current_compilation_context  # made when it is imported
    monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(9, "0a")})
    for name, value in (("FLASHINFER_GEN_SRC_DIR", tmp_path), ("FLASHINFER_JIT_DIR", tmp_path)):
        monkeypatch.setattr(flashinfer.jit.env, name, value)
    asked_for = {"cascade"}.union(*(each.names for each in compiled.values()))
    assert {module.name for module in flash_module.modules_of(heads)} == asked_for


def test_its_planner_is_told_the_lengths_of_all_rows(compiled: dict[str, Compiled]):
    """An empty one has none, which its own count of keys would not say for other tables."""
    pool = Pool.of(4, 2, 2, head_dim=64)
    pool.cache.dtype = torch.bfloat16
    tables = PageTables.of([3, 1], [9, 4], [*torch.arange(1, 9).view(2, 4).numpy()], 4)
    padded = tables.padded(4, 8)
    kernel = Flash(CPU, flashinfer).causal(
        heads_of(pool.cache, num_heads=4), FixedSize(4, torch.zeros(99, dtype=torch.int32))
    )
    kernel.plan(padded)
    (args,) = compiled["prefill"].planned
    lengths = flashinfer.page.get_seq_lens(
        *map(torch.from_numpy, (padded.kv_indptr, padded.last_page_len)), 4
    )
    assert lengths.tolist() == args[5].tolist() == [9, 4, 0, 4]
    assert args[3].tolist() == [0, 3, 4, 4, 8]
    assert args[6:9] == (8, 4, 4)  # queries, rows, heads
    assert args[14] is True  # causal


def test_it_merges_in_place(compiled: dict[str, Compiled]):
    found, other = torch.randn(2, 5, 3, 64)
    sums, other_sums = torch.randn(2, 5, 3)
    expected = merged(found, sums, other, other_sums)
    Flash(CPU, flashinfer).merge(found, sums, other, other_sums)
    assert torch.equal(found, expected[0])
    assert torch.equal(sums, expected[1])


def test_its_signatures_take_every_call_that_the_stand_in_is_given(
    cuda: PretendedCuda, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flash_module, "WORKSPACE_BYTES", 1)
    library = StandIn()
    flash, pool = Flash(DEVICE, library), Pool.of(4, 2, 2)
    heads = heads_of(pool.cache, num_heads=4)
    tables = PageTables.of([1, 1], [9, 4], [*torch.arange(1, 9).view(2, 4).numpy()], 4)
    q, found = pool.tokens(2)[0].to(DEVICE), []
    for fixed in (None, FixedSize(2, torch.zeros(9, dtype=torch.int32, device=DEVICE))):
        for make in (flash.decode, flash.causal, flash.whole):
            kernel = make(heads, fixed)
            kernel.plan(tables)
            pages = tuple(x.to(DEVICE) for x in pool.cache.pages(0))
            kernel.run(q, pages)
            found = [*kernel.run_with_sums(q, pages), *found]
    flash.merge(*found[:4])
    sizes = LayerSizes(64, 4, 2, 64, torch.bfloat16)
    assert trial_of_layers(flash, sizes, DEVICE) == ""
    assert bound(flashinfer, library.calls) == 6 * 4 + 3 + 1 + 5
    with pytest.raises(TypeError, match="unexpected keyword"):
        bound(flashinfer, [("merge_state_in_place", (1, 2, 3, 4), {"sums": 5})])


def test_what_layers_are_compiled_from_has_these_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    context = flashinfer.jit.core.current_compilation_context
    monkeypatch.setattr(context, "TARGET_CUDA_ARCHS", {(9, "0a")})
    monkeypatch.setattr(flashinfer.jit.env, "FLASHINFER_JIT_DIR", tmp_path)
    assert [module.name for module in flash_module.modules_of_layers()] == ["norm", "rope"]


def test_its_kernels_are_of_these_types_and_this_version():
    floats = {each for each in flashinfer.jit.utils.dtype_map if each.is_floating_point}
    assert set(DTYPES) == {each for each in floats if each.itemsize == 2}
    assert torch.float32 not in floats
    parts = tuple(map(int, flashinfer.__version__.split(".")[:3]))
    assert VERSIONS[0] <= parts < VERSIONS[1]
    assert set(HEAD_DIMS) <= {64, 128, 256, 512}
