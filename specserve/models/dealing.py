# pyright: strict
"""What each of several tensor-parallel ranks holds of a model. Pure: knows sizes, not tensors.

Columns are dealt in runs, in the order of ranks, as equal as may be. So are heads, by the groups of
query heads that attend with one key-value head; where there are more ranks than groups, each has
one key-value head that several ranks keep, and some of its query heads. On every rank all key-value
heads have equally many query heads, which is what attention is made for.

docs/decisions/0004-tensor-parallel.md says what uneven dealing costs.
"""

from dataclasses import dataclass
from itertools import pairwise

from specserve.errors import Unsupported
from specserve.models.config import ModelSpec

# Products, on any device, like columns in multiples of a power of two up to this one, ...
_STEP = 64
_LEAST_STEPS = 4  # of a rank, so that one more or less is a quarter of its share at most; ...
_FINE_STEP = 32  # ... and what lies within so many costs none of them more, of a panel, say


@dataclass(frozen=True)
class Share:
    """Entries `start` to `stop` - 1 of a dimension of `size`."""

    start: int
    stop: int
    size: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def entries(self) -> slice:
        return slice(self.start, self.stop)

    def times(self, width: int) -> "Share":
        """The same of a dimension where each entry is `width` of them."""
        return Share(self.start * width, self.stop * width, self.size * width)


@dataclass(frozen=True)
class HeadShare:
    """The heads of one rank."""

    queries: Share
    kv: Share

    def columns(self, head_dim: int) -> tuple[Share, Share, Share]:
        """Of all queries, all keys and all values."""
        kv = self.kv.times(head_dim)
        return self.queries.times(head_dim), kv, kv

    @property
    def missing(self) -> tuple[int, int]:
        """Query heads that the rank lacks of its groups, before and behind those it has."""
        per_kv = self.queries.size // self.kv.size
        before = self.queries.start - self.kv.start * per_kv
        return before, self.kv.stop * per_kv - self.queries.stop


Shares = tuple[Share, ...]  # one rank's of each of the weights that are one product


def deal(size: int, num_ranks: int) -> Shares:
    """A dimension's columns, by rank; `size` is not less than `num_ranks`."""
    width, left = divmod(size, num_ranks)
    step = _step(width) if left else width
    bounds = [step * bound for bound in _bounds(-(-size // step), num_ranks)]
    return tuple(Share(start, min(stop, size), size) for start, stop in pairwise(bounds))


def deal_heads(num_heads: int, num_kv_heads: int, num_ranks: int) -> tuple[HeadShare, ...]:
    """The heads by rank; `num_heads` is not less than `num_ranks`."""
    per_kv = num_heads // num_kv_heads

    def share(start: int, stop: int, kv_start: int, kv_stop: int) -> HeadShare:
        kv = Share(kv_start, kv_stop, num_kv_heads)
        return HeadShare(Share(start, stop, num_heads), kv)

    if num_ranks <= num_kv_heads:
        groups = pairwise(_bounds(num_kv_heads, num_ranks))
        return tuple(share(first * per_kv, end * per_kv, first, end) for first, end in groups)
    dealt: list[HeadShare] = []
    for kv, (first, end) in enumerate(pairwise(_bounds(num_ranks, num_kv_heads))):
        parts = pairwise(_bounds(per_kv, end - first))
        dealt += [share(kv * per_kv + a, kv * per_kv + b, kv, kv + 1) for a, b in parts]
    return tuple(dealt)


def check_ranks(spec: ModelSpec, num_ranks: int) -> None:
    """Raise `Unsupported`, naming the field, where a rank would be left with nothing."""
    sizes = _sizes(spec)
    field = min(sizes, key=lambda field: sizes[field])
    most = sizes[field]
    if num_ranks > most:
        raise Unsupported(
            f"topology.topology: {num_ranks} target ranks, but {field} is {most}: at most {most} "
            f"ranks work, as in --topology {most}+0"
        )


def _sizes(spec: ModelSpec) -> dict[str, int]:
    return {
        "num_attention_heads": spec.num_heads,
        "intermediate_size": spec.intermediate_size,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
    }


def _step(width: int) -> int:
    """Columns that are dealt together, where a rank has about `width`."""
    step = _STEP
    while step > _FINE_STEP and width < _LEAST_STEPS * step:
        step //= 2
    while step > width:
        step //= 2
    return step


def _bounds(number: int, num_parts: int) -> list[int]:
    """Where parts of `number` things begin and end; no two differ by more than one.

    The first has no more than any other: rank 0 has other work and keeps other things besides.
    """
    return [part * number // num_parts for part in range(num_parts + 1)]
