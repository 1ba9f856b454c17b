"""flashinfer's kernels tried on a few numbers before anything is served by them.

They are compiled where they run, by a compiler that may not be there, for a device that nobody may
have tried: what they find is held against torch's own operations, captured and not.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specserve.backends.cuda import graphs
from specserve.backends.cuda.flash import FixedSize, Flash, Heads, Kernel, Pages
from specserve.backends.cuda.page_tables import PageTables

_NUM_BLOCKS = 9
# Of results that are means of values of size 1, in 16 bits: a unit of bfloat16 is .008 there.
_TOLERANCE = 0.05
_Make = Callable[..., Kernel]


def trial(flash: Flash, heads: Heads) -> str:
    """What is wrong with kernels of `heads` here, in words; empty if nothing is.

    Compiles them if that was not done before: a minute or two.
    """
    try:
        return _Trial(flash, heads).obstacle()
    except Exception as error:  # noqa: BLE001 - compilers and drivers raise what they like
        reason = str(error).strip().splitlines()
        return f"flashinfer: {type(error).__name__}: {reason[0] if reason else 'no reason given'}"


class _Trial:
    def __init__(self, flash: Flash, heads: Heads) -> None:
        self._flash, self._heads = flash, heads
        self._generator = torch.Generator().manual_seed(0)
        sizes = (heads.num_kv_heads, _NUM_BLOCKS, heads.page_size, heads.head_dim)
        keys, values = (self._random(*sizes).transpose(0, 1) for _ in range(2))
        self._pages: Pages = (keys, values)

    def _random(self, *sizes: int) -> Tensor:
        numbers = torch.randn(sizes, generator=self._generator)
        return numbers.to(self._flash.device, self._heads.dtype)

    def obstacle(self) -> str:
        size = self._heads.page_size
        # Pages in any order, one that two rows share, a last one that is full, and an empty row.
        decode = [self._tables([1, 1], [size + 1, 3 * size]), self._tables([1, 1], [1, 2])]
        mixed = [
            self._tables([3, 1, 2], [2 * size, 1, size + 2]),
            self._tables([1, 5, 0], [3 * size, 5, 0]),
        ]
        cases = (("decode", decode, True), ("causal", mixed, True), ("whole", mixed, False))
        for name, tables, causal in cases:
            make = getattr(self._flash, name)
            for found, expected in (
                self._run(make(self._heads), tables[0], causal),
                *self._replayed(make, tables, causal),
            ):
                error = (found.float() - expected).abs().max().item()
                if not error <= _TOLERANCE:
                    return f"flashinfer: its {name} attention is off by {error:.3g} here"
        return self._merging()

    def _tables(self, counts: list[int], lengths: list[int]) -> PageTables:
        order = torch.tensor([5, 2, 7, 5, 1, 8, 4, 3, 6]).numpy()
        tables = [order[3 * row :] for row in range(len(counts))]
        return PageTables.of(counts, lengths, tables, self._heads.page_size)

    def _queries(self, tables: PageTables) -> Tensor:
        return self._random(tables.num_queries, self._heads.num_heads, self._heads.head_dim)

    def _run(self, kernel: Kernel, tables: PageTables, causal: bool) -> tuple[Tensor, Tensor]:
        q = self._queries(tables)
        kernel.plan(tables)
        return kernel.run(q, self._pages), self._expected(q, tables, causal)

    def _replayed(
        self, make: _Make, tables: list[PageTables], causal: bool
    ) -> list[tuple[Tensor, Tensor]]:
        """Of a graph that was captured with the first tables: those, and the others."""
        first = tables[0]
        indices = torch.zeros(_NUM_BLOCKS, dtype=torch.int32, device=self._flash.device)
        kernel = make(self._heads, FixedSize(first.num_rows, indices))
        q, kept = self._queries(first), list[Tensor]()

        def run() -> None:
            kept[:] = [kernel.run(q, self._pages)]

        kernel.plan(first)
        replay = graphs.GraphCapture().capture(run)
        found: list[tuple[Tensor, Tensor]] = []
        for each in tables:
            kernel.plan(each)
            replay()
            found.append((kept[0].clone(), self._expected(q, each, causal)))
        return found

    def _merging(self) -> str:
        """Two rows over some pages and over others, against the same over both."""
        size = self._heads.page_size
        parts = self._tables([2, 1], [size, 2]), self._tables([2, 1], [2 * size, size])
        q = self._queries(parts[0])
        kernel = self._flash.whole(self._heads)
        found: list[Tensor] = []
        for tables in parts:
            kernel.plan(tables)
            found += kernel.run_with_sums(q, self._pages)
        self._flash.merge(*found)
        joined: list[Tensor] = []
        for row, queries in ((0, slice(0, 2)), (1, slice(2, 3))):
            of_parts = zip(*(self._of_row(tables, row) for tables in parts), strict=True)
            keys, values = (torch.cat(pair, dim=1) for pair in of_parts)
            joined.append(self._attend(q[queries], keys, values, causal=False))
        error = (found[0].float() - torch.cat(joined)).abs().max().item()
        return "" if error <= _TOLERANCE else f"flashinfer: merging is off by {error:.3g} here"

    def _expected(self, q: Tensor, tables: PageTables, causal: bool) -> Tensor:
        ends = tables.qo_indptr.tolist()
        rows = [
            self._attend(q[ends[row] : ends[row + 1]], *self._of_row(tables, row), causal=causal)
            for row in range(tables.num_rows)
            if ends[row] < ends[row + 1]
        ]
        return torch.cat(rows)

    def _of_row(self, tables: PageTables, row: int) -> tuple[Tensor, Tensor]:
        """Its keys and values [kv_heads, K, head_dim]."""
        first, end = tables.kv_indptr[row : row + 2].tolist()
        ids = torch.from_numpy(tables.kv_indices[first:end]).long().to(self._flash.device)
        num_keys = (end - first - 1) * tables.page_size + int(tables.last_page_len[row])
        keys, values = (
            x.index_select(0, ids).transpose(0, 1).flatten(1, 2)[:, :num_keys] for x in self._pages
        )
        return keys, values

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> Tensor:
        """q [M, heads, head_dim], keys and values [kv_heads, K, head_dim]: float32 like q."""
        ratio = self._heads.num_heads // self._heads.num_kv_heads
        keys, values = (x.float().repeat_interleave(ratio, dim=0) for x in (keys, values))
        scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * self._heads.scale
        if causal:
            sees = torch.ones(scores.shape[1:], device=q.device).tril(len(keys[0]) - len(q))
            scores = scores.masked_fill(sees == 0, -torch.inf)
        return (torch.softmax(scores, dim=2) @ values).transpose(0, 1)
