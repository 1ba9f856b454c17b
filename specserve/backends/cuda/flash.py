"""flashinfer behind few calls: paged attention, norms, rotation; nothing else here imports it.

What is passed is positional as little as can be: of a wrapper's names, those that are used here
exist in all versions of `VERSIONS` (tests/backends/cuda/test_flash_contract.py asks the installed
one). The kernels are those of its "fa2" family throughout, and decoding on tensor cores is one of
them, so that two modules are compiled a head size and dtype and one for merging:
docs/decisions/0042-flashinfer.md.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from specserve.backends.cuda.page_tables import PageTables

flashinfer: Any = None
_WHY_NOT = ""
try:
    import flashinfer  # pyright: ignore[reportMissingImports]
except Exception as error:  # noqa: BLE001 - it refuses drivers and caches by what it raises
    _WHY_NOT = str(error)

VERSIONS = ((0, 6, 8), (0, 7))  # from, and below
HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
_LEAST_CAPABILITY = (8, 0)
_MOST_STRIDE = 1 << 32  # elements from one head's keys to the next one's, which are counted so
# Ratios of query heads to key heads for which its kernel without tensor cores is taken: it has no
# others but 4 and 8, and those with tensor cores read a group's keys once.
_PLAIN_RATIOS = (1, 2, 3)
_LAYOUT = "HND"  # a head's keys of one page lie beside each other
WORKSPACE_BYTES = 256 << 20  # for partial results; see `flash_shape.graph_bytes`
_TABLE_BYTES = 512 << 10  # of a captured kernel: of what `plan` makes of tables

Pages = tuple[Tensor, Tensor]  # keys and values [blocks, kv_heads, page_size, head_dim], any stride


@dataclass(frozen=True)
class Heads:
    """What attention is of, in every layer of a model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    scale: float  # of scores


class Wrapper(Protocol):
    """What is called of one of flashinfer's, whose signatures a test asks the installed one."""

    @property
    def plan(self) -> Callable[..., None]: ...
    @property
    def run(self) -> Callable[..., Any]: ...
    @property
    def reset_workspace_buffer(self) -> Callable[..., None]: ...


class Library(Protocol):
    """What is used of flashinfer."""

    __version__: str

    @property
    def BatchPrefillWithPagedKVCacheWrapper(self) -> Callable[..., Wrapper]: ...  # noqa: N802
    @property
    def BatchDecodeWithPagedKVCacheWrapper(self) -> Callable[..., Wrapper]: ...  # noqa: N802
    @property
    def merge_state_in_place(self) -> Callable[..., None]: ...
    @property
    def rmsnorm(self) -> Callable[..., Tensor]: ...
    @property
    def fused_add_rmsnorm(self) -> Callable[..., None]: ...
    @property
    def apply_rope_with_cos_sin_cache_inplace(self) -> Callable[..., None]: ...


class Kernel(Protocol):
    """Attention of one forward: `plan` once, on the host, then `run` in every layer."""

    def plan(self, tables: PageTables) -> None: ...

    def run(self, q: Tensor, pages: Pages) -> Tensor:
        """q [Q, heads, head_dim] -> the same shape."""
        ...

    def run_with_sums(self, q: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
        """And logarithms of the sums of weights, float32 [Q, heads], for `Flash.merge`."""
        ...


def why_not(device: torch.device, library: Library | None = None) -> str:
    """What is in the way of flashinfer on `device`, in words; empty if nothing is."""
    library = library or flashinfer
    hint = "pip install 'specserve[gpu]' brings it"
    if library is None:
        return f"cannot import flashinfer ({_WHY_NOT}); {hint}"
    version = library.__version__
    parts = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not VERSIONS[0] <= parts < VERSIONS[1]:
        lowest, limit = (".".join(map(str, each)) for each in VERSIONS)
        return f"flashinfer {version} is not from {lowest} to below {limit}; {hint}"
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (capability, _LEAST_CAPABILITY))
        return f"flashinfer: compute capability {found} of {device} is below {least}"
    return ""


def why_not_of(heads: Heads, kept_dtype: torch.dtype, num_slots: int) -> str:
    """The same of heads whose keys and values are kept in `kept_dtype`, in a pool of so many."""
    if heads.head_dim not in HEAD_DIMS:
        return f"flashinfer: heads of {heads.head_dim}, and it has {_listed(HEAD_DIMS)}"
    if heads.dtype not in DTYPES:
        return f"flashinfer: {_name(heads.dtype)}, and it has {_listed(map(_name, DTYPES))}"
    if kept_dtype != heads.dtype:
        return f"flashinfer: keys in {_name(kept_dtype)} beside queries in {_name(heads.dtype)}"
    if num_slots * heads.head_dim >= _MOST_STRIDE:
        return f"flashinfer: a pool of {num_slots} tokens is too large for it"
    return ""


class Module(Protocol):
    """Of kernels that are compiled together."""

    name: str

    @property
    def is_compiled(self) -> bool: ...

    def build(self, verbose: bool) -> None:
        """With nvcc and ninja, into flashinfer's folder. RuntimeError where that fails."""
        ...


def modules_of(heads: Heads) -> list[Module]:
    """All that attention of `heads` is compiled from: what `Flash` asks for, and nothing else.

    Needs flashinfer, and no device: FLASHINFER_CUDA_ARCH_LIST says for which they are made.
    """
    jit, dim = flashinfer.jit, heads.head_dim
    types = (heads.dtype, heads.dtype, heads.dtype, torch.int32)
    # No positions, no window, no cap, sums of float32.
    found = [
        jit.attention.gen_batch_prefill_module("fa2", *types, dim, dim, 0, False, False, False),
        jit.cascade.gen_cascade_module(),
    ]
    if heads.num_heads // heads.num_kv_heads in _PLAIN_RATIOS:
        found.append(jit.attention.gen_batch_decode_module(*types, dim, dim, 0, False, False))
    return found


def modules_of_layers() -> list[Module]:
    """All that `Flash.norm`, `add_and_norm` and `rotate` are compiled from, for all sizes.

    With nvidia-cutlass-dsl installed its norms are compiled by that instead, when they are used.
    """
    return [flashinfer.jit.norm.gen_norm_module(), flashinfer.jit.rope.gen_rope_module()]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


class Flash:
    """Makes kernels on one device, which share memory: they run one after another."""

    def __init__(self, device: torch.device, library: Library | None = None) -> None:
        assert library or flashinfer, "see why_not"
        self._library: Library = library or flashinfer
        self.device = device

    @property
    def version(self) -> str:
        return self._library.__version__

    @cached_property
    def _workspace(self) -> Tensor:
        # Zeros, which some of its kernels ask for.
        return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self.device)

    def decode(self, heads: Heads, fixed: "FixedSize | None" = None) -> Kernel:
        """For rows of one query each."""
        buffers = {} if fixed is None else fixed.of_decode(self.device)
        made = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            _LAYOUT,
            use_cuda_graph=fixed is not None,
            use_tensor_cores=heads.num_heads // heads.num_kv_heads not in _PLAIN_RATIOS,
            backend="fa2",
            **buffers,
        )
        self._share(made, fixed)

        def plan(tables: PageTables) -> None:
            made.plan(
                torch.from_numpy(tables.kv_indptr),
                self._indices_of(tables),
                torch.from_numpy(tables.last_page_len),
                heads.num_heads,
                heads.num_kv_heads,
                heads.head_dim,
                tables.page_size,
                sm_scale=heads.scale,
                q_data_type=heads.dtype,
                kv_data_type=heads.dtype,
            )

        return _Planned(made, plan)

    def causal(self, heads: Heads, fixed: "FixedSize | None" = None) -> Kernel:
        """For rows whose last query sees all of the row's keys, the one before all but one ..."""
        return self._prefill(heads, fixed, causal=True)

    def whole(self, heads: Heads, fixed: "FixedSize | None" = None) -> Kernel:
        """For rows whose queries see all of the row's keys."""
        return self._prefill(heads, fixed, causal=False)

    def _prefill(self, heads: Heads, fixed: "FixedSize | None", *, causal: bool) -> Kernel:
        buffers = {} if fixed is None else fixed.of_prefill(self.device)
        made = self._library.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, _LAYOUT, use_cuda_graph=fixed is not None, backend="fa2", **buffers
        )
        self._share(made, fixed)

        def plan(tables: PageTables) -> None:
            made.plan(
                torch.from_numpy(tables.qo_indptr),
                torch.from_numpy(tables.kv_indptr),
                self._indices_of(tables),
                torch.from_numpy(tables.last_page_len),
                heads.num_heads,
                heads.num_kv_heads,
                heads.head_dim,
                tables.page_size,
                causal=causal,
                sm_scale=heads.scale,
                q_data_type=heads.dtype,
                kv_data_type=heads.dtype,
            )

        return _Planned(made, plan)

    def _share(self, made: Wrapper, fixed: "FixedSize | None") -> None:
        """A captured kernel keeps less than its own 8 MiB for what `plan` makes: there are many."""
        if fixed is not None:
            tables = torch.empty(_TABLE_BYTES, dtype=torch.uint8, device=self.device)
            made.reset_workspace_buffer(self._workspace, tables)

    def _indices_of(self, tables: PageTables) -> Tensor:
        """On the device: of memory of the host, its `plan` would wait for the copy, and all before.

        Its other tables have to be on the host, which it reads, and it does not wait for those.
        """
        # Not pinned: the copy has left this memory when the call returns.
        return torch.from_numpy(tables.kv_indices).to(self.device, non_blocking=True)

    def merge(self, found: Tensor, sums: Tensor, other: Tensor, other_sums: Tensor) -> None:
        """What one kernel found of some keys and another of others: `found` becomes that of all."""
        self._library.merge_state_in_place(found, sums, other, other_sums)

    # --- what is fused of layers: see `FusedOps` -------------------------------------------------

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._library.rmsnorm(x, weight, eps)

    def add_and_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        self._library.fused_add_rmsnorm(x, residual, weight, eps)

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor, turning: Tensor) -> None:
        self._library.apply_rope_with_cos_sin_cache_inplace(
            positions, q, k, q.shape[-1], turning, is_neox=True
        )


@dataclass(frozen=True)
class FixedSize:
    """Of a kernel that is captured: every batch that it plans has as many rows and queries.

    Its tables lie in buffers that stay where they are, `indices` among them, which kernels that
    are never planned at the same time may share: int32, room for the most pages there can be.
    """

    num_rows: int
    indices: Tensor

    def of_decode(self, device: torch.device) -> dict[str, Tensor]:
        return {
            "paged_kv_indptr_buffer": self._int32(self.num_rows + 1, device),
            "paged_kv_indices_buffer": self.indices,
            "paged_kv_last_page_len_buffer": self._int32(self.num_rows, device),
        }

    def of_prefill(self, device: torch.device) -> dict[str, Tensor]:
        return {
            "qo_indptr_buf": self._int32(self.num_rows + 1, device),
            "paged_kv_indptr_buf": self._int32(self.num_rows + 1, device),
            "paged_kv_indices_buf": self.indices,
            "paged_kv_last_page_len_buf": self._int32(self.num_rows, device),
        }

    def _int32(self, size: int, device: torch.device) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=device)


class _Planned:
    """See `Kernel`."""

    def __init__(self, wrapper: Wrapper, plan: Callable[[PageTables], None]) -> None:
        self._wrapper = wrapper
        self._plan = plan
        self._was_copied = torch.cuda.Event()

    def plan(self, tables: PageTables) -> None:
        # It writes to pinned memory that its last plan may still be copied from.
        self._was_copied.synchronize()
        self._plan(tables)
        self._was_copied.record()

    def run(self, q: Tensor, pages: Pages) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)  # it would fill it with zeros
        return self._wrapper.run(q, pages, out=out)

    def run_with_sums(self, q: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        return self._wrapper.run(q, pages, out=out, return_lse=True)
