"""flashinfer on a machine without CUDA: calls are kept; attention, norms and rotation computed.

`plan` puts tables where the wrapper would have them on the device; `run` reads nothing else, so
that a captured one (tests/device/tape.py) attends as the last plan says. What it computes is what
tests/backends/cuda/paged_reference.py defines, in operations whose shapes no table decides; a test
holds one against the other. Whatever the real ones refuse of sizes is refused here, too.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_MOST_KEYS = 320  # of a row, in these tests


@dataclass
class StandIn:
    """The module; `calls` are names of wrappers' methods and what they were given, in order."""

    __version__: str = "0.6.8"
    calls: list[tuple[str, tuple, dict]] = field(default_factory=list)
    error: Callable[[Tensor], Tensor] = lambda found: found  # what a wrong kernel would make of it

    def BatchPrefillWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> "Prefill":  # noqa: N802
        self.calls.append(("BatchPrefillWithPagedKVCacheWrapper.__init__", args, kwargs))
        return Prefill(self, *args, **kwargs)

    def BatchDecodeWithPagedKVCacheWrapper(self, *args: Any, **kwargs: Any) -> "Decode":  # noqa: N802
        self.calls.append(("BatchDecodeWithPagedKVCacheWrapper.__init__", args, kwargs))
        return Decode(self, *args, **kwargs)

    def merge_state_in_place(self, v: Tensor, s: Tensor, other: Tensor, other_s: Tensor) -> None:
        self.calls.append(("merge_state_in_place", (v, s, other, other_s), {}))
        assert s.dtype == other_s.dtype == torch.float32
        most = torch.maximum(s, other_s)
        weight, other_weight = torch.exp2(s - most), torch.exp2(other_s - most)
        total = weight + other_weight
        mean = v.float() * weight[..., None] + other.float() * other_weight[..., None]
        v.copy_((mean / total[..., None]).to(v.dtype))
        s.copy_(most + torch.log2(total))

    def rmsnorm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.calls.append(("rmsnorm", (x, weight, eps), {}))
        self._check_norm(x, weight)
        wide = x.float()
        mean = wide.square().mean(-1, keepdim=True)
        return self.error((wide / (mean + eps).sqrt() * weight.float()).to(x.dtype))

    def fused_add_rmsnorm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        self.calls.append(("fused_add_rmsnorm", (x, residual, weight, eps), {}))
        self._check_norm(x, weight)
        assert x.dim() == 2
        assert (residual.shape, residual.dtype) == (x.shape, x.dtype)
        wide = x.float() + residual.float()
        residual.copy_(wide)
        mean = wide.square().mean(-1, keepdim=True)
        x.copy_(self.error(wide / (mean + eps).sqrt() * weight.float()))

    def apply_rope_with_cos_sin_cache_inplace(
        self,
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        head_size: int,
        cos_sin_cache: Tensor,
        *,
        is_neox: bool,
    ) -> None:
        given = (positions, query, key, head_size, cos_sin_cache)
        self.calls.append(("apply_rope_with_cos_sin_cache_inplace", given, {"is_neox": is_neox}))
        assert is_neox
        assert cos_sin_cache.dtype == torch.float32
        assert cos_sin_cache.is_contiguous()
        assert positions.is_contiguous()
        turns = cos_sin_cache.index_select(0, positions.long())[:, None]
        half = head_size // 2
        cos, sin = turns[..., :half], turns[..., half:]
        for x in (query, key):
            assert x.dtype in (torch.float16, torch.bfloat16)
            heads = x.view(len(x), -1, head_size)
            first, second = heads[..., :half].float(), heads[..., half:].float()
            turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
            heads.copy_(self.error(turned))

    def _check_norm(self, x: Tensor, weight: Tensor) -> None:
        assert x.dim() in (2, 3)
        assert x.stride(-1) == weight.stride(-1) == 1
        assert weight.shape == x.shape[-1:]
        assert x.dtype == weight.dtype
        assert x.dtype in (torch.float16, torch.bfloat16)

    def count(self, name: str) -> int:
        return sum(name in each for each, *_ in self.calls)


class _Wrapper:
    """What both have: fixed buffers or new ones, and attention by what is in them."""

    name: str

    def __init__(self, library: StandIn, workspace: Tensor, layout: str, options: dict) -> None:
        assert layout == "HND"
        assert workspace.dtype == torch.uint8
        assert options.pop("backend") == "fa2"
        self._library, self.device = library, workspace.device
        self._is_fixed = options.pop("use_cuda_graph")
        self._buffers: dict[str, Tensor] = {
            name.removesuffix("fer").removesuffix("_buf"): x for name, x in options.items()
        }
        if self._is_fixed:
            names = {"paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"}
            assert set(self._buffers) >= names
        for x in self._buffers.values():
            assert x.dtype == torch.int32
        self._num_queries: int | None = None

    def reset_workspace_buffer(self, *buffers: Tensor) -> None:
        self._keep("reset_workspace_buffer", buffers, {})

    def _keep(self, method: str, args: tuple, kwargs: dict) -> None:
        self._library.calls.append((f"{self.name}.{method}", args, kwargs))

    def _put(self, name: str, table: Tensor) -> None:
        # Indices from the host are copied to fixed buffers by a call that waits for the device;
        # from all other tables the host's planner reads.
        at = self.device if name == "paged_kv_indices" else torch.device("cpu")
        assert table.device == at, name
        assert table.dtype == torch.int32
        if not self._is_fixed:
            self._buffers[name] = table.to(self.device)
            return
        buffer = self._buffers[name]
        if name == "paged_kv_indices":
            assert len(table) <= len(buffer)
        else:  # the number of rows is fixed
            assert len(table) == len(buffer), name
        buffer[: len(table)].copy_(table)

    def _note(self, sizes: tuple[int, int, int, int], options: dict, causal: bool) -> None:
        self._heads, self._kv_heads, self._head_dim, self._page_size = sizes
        self._dtypes = options["q_data_type"], options["kv_data_type"]
        self._scale, self._causal = options["sm_scale"], causal

    def run(self, q: Tensor, pages: tuple[Tensor, Tensor], **options: Any) -> Any:
        self._keep("run", (q, pages), options)
        keys, values = pages
        assert q.shape == (self._num_queries, self._heads, self._head_dim)
        assert q.stride(2) == 1
        assert keys.shape[1:] == (self._kv_heads, self._page_size, self._head_dim)
        assert keys.stride() == values.stride()
        assert (q.dtype, keys.dtype) == self._dtypes
        found, sums = self._attend(q, keys, values)
        out = options["out"]
        assert out.shape == q.shape
        assert out.is_contiguous()
        out.copy_(self._library.error(found))
        return (out, sums) if options.get("return_lse") else out

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Every query and every key that a row may have, under a mask."""
        queries, pages, indices, last = (
            self._buffers[name].long()
            for name in (
                "qo_indptr",
                "paged_kv_indptr",
                "paged_kv_indices",
                "paged_kv_last_page_len",
            )
        )
        places = torch.arange(len(q), device=self.device)
        row = (places[:, None] >= queries[1:]).sum(1).clamp(max=len(last) - 1)
        num_pages = pages[1:] - pages[:-1]
        num_keys = ((num_pages - 1) * self._page_size + last).where(num_pages > 0, 0 * last)
        seen = num_keys.index_select(0, row)
        if self._causal:
            seen = seen - (queries[1:].index_select(0, row) - 1 - places)
        positions = torch.arange(_MOST_KEYS, device=self.device)
        first = pages[:-1].index_select(0, row)[:, None]
        page = (first + positions // self._page_size).clamp(max=len(indices) - 1)
        ids = indices.index_select(0, page.flatten()).view(page.shape)
        slots = (ids * self._page_size + positions % self._page_size).flatten()
        ratio = self._heads // self._kv_heads
        own = (
            x.transpose(1, 2).flatten(0, 1).index_select(0, slots).view(*page.shape, *x.shape[1::2])
            for x in (keys, values)
        )
        visible = (positions < seen[:, None])[:, :, None]
        # Beyond what a row has, real kernels read nothing.
        of_keys, of_values = (
            x.float().where(visible[..., None], 0.0).repeat_interleave(ratio, dim=2) for x in own
        )
        scores = (q.float()[:, None] * of_keys).sum(3) * self._scale
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, dim=1).nan_to_num(0.0)
        found = (weights[..., None] * of_values).sum(1)
        return found.to(q.dtype), torch.logsumexp(scores, dim=1) / math.log(2)


class Prefill(_Wrapper):
    name = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self, library: StandIn, workspace: Tensor, layout: str, **options: Any) -> None:
        super().__init__(library, workspace, layout, options)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        last_page_len: Tensor,
        *sizes: int,
        causal: bool,
        **options: Any,
    ) -> None:
        given = (qo_indptr, kv_indptr, kv_indices, last_page_len)
        self._keep("plan", (*given, *sizes), {"causal": causal, **options})
        num_queries, rows = int(qo_indptr[-1]), len(last_page_len)
        if self._is_fixed:
            assert self._num_queries in (None, num_queries), "queries of a captured kernel"
            assert rows <= num_queries, "its planner counts the longest row without a sign"
        self._num_queries = num_queries
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        for name, table in zip(names, given, strict=True):
            self._put(name, table)
        self._note(sizes, options, causal)


class Decode(_Wrapper):
    name = "BatchDecodeWithPagedKVCacheWrapper"

    def __init__(
        self,
        library: StandIn,
        workspace: Tensor,
        layout: str,
        *,
        use_tensor_cores: bool,
        **options: Any,
    ) -> None:
        super().__init__(library, workspace, layout, options)
        self.use_tensor_cores = use_tensor_cores

    def plan(
        self,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        last_page_len: Tensor,
        *sizes: int,
        **options: Any,
    ) -> None:
        given = (kv_indptr, kv_indices, last_page_len)
        self._keep("plan", (*given, *sizes), options)
        if not self.use_tensor_cores:
            assert sizes[0] // sizes[1] in (1, 2, 3, 4, 8), "it has no other kernels"
        self._num_queries = len(last_page_len)
        names = ("paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        for name, table in zip(names, given, strict=True):
            self._put(name, table)
        rows = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        if self._is_fixed and "qo_indptr" in self._buffers:
            assert len(rows) == len(self._buffers["qo_indptr"])
        else:
            self._buffers["qo_indptr"] = rows.to(self.device)
        self._note(sizes, options, causal=False)


def bound(library: Any, calls: list[tuple[str, tuple, dict]]) -> int:
    """How many of `calls` the signatures of `library` take; TypeError for one that they do not."""
    for name, args, kwargs in calls:
        function: Any = library
        for part in name.split("."):
            function = getattr(function, part)
        own = (None,) if "." in name else ()  # self
        inspect.signature(function).bind(*own, *args, **kwargs)
    return len(calls)
