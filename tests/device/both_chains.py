"""Drafters of chains whose passes are captured, and the same by torch's own: asked the same."""

from collections.abc import Callable

import numpy as np
import torch

from specserve.backends.base import Backend
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.chain_passes import CapturedChainPasses
from specserve.backends.cuda.feature_chains import CapturedFeatureChains
from specserve.backends.cuda.flash import Library
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter
from specserve.sampling.noise_table import NoiseTable
from tests.device.both_drafters import sampler_of

Make = Callable[[torch.dtype, Backend], Drafter]


class BothChains:
    """With the same contexts, of four rows."""

    def __init__(
        self, make: Make, dtype: torch.dtype, device: torch.device, library: Library | None = None
    ) -> None:
        """`library`: flashinfer or what stands in for it, by which the captured one attends."""
        captured = make(dtype, CudaGraphBackend(device, library))
        assert isinstance(captured, LanguageModelDrafter | Eagle3Drafter)
        self.captured = captured
        self.drafters = make(dtype, TorchBackend(device)), captured
        self._dtype, self.device = dtype, device
        self.rng = np.random.default_rng(3)
        self._table = NoiseTable(4 * 64 * 40)
        self._read: list[tuple[torch.Tensor, torch.Tensor]] = []  # results, and copies of then
        self._same: list[torch.Tensor] = []  # of every token
        self._num_drafts = 0

    @property
    def chains(self) -> CapturedChainPasses | CapturedFeatureChains:
        is_model = isinstance(self.captured, LanguageModelDrafter)
        found = self.captured._passes if is_model else self.captured._chains
        assert isinstance(found, CapturedChainPasses | CapturedFeatureChains)
        return found

    def extend(self, row: int, count: int, *, broken: int | None = None) -> None:
        """`broken`: a token whose features are not finite, where there are features."""
        size = self.captured.feature_size
        features = torch.from_numpy(self.rng.normal(size=(count, size)))
        if broken is not None:
            features[broken] = torch.nan
        update = ContextUpdate(
            rows=[row],
            starts=[self.captured.context_len(row)],
            counts=[count],
            token_ids=self._ints(count),
            features=features.to(self.device, self._dtype) if size else None,
        )
        for drafter in self.drafters:
            drafter.extend(update)

    def truncate(self, row: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.truncate(row, length)

    def _ints(self, count: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.integers(1, 60, count)).to(self.device)

    def assert_drafts_are_near(self, rows: list[int], near: float, **fields: object) -> None:
        """By samplers of every kind in turn."""
        batch = DraftBatch(rows, self._ints(len(rows)), keep_logits=True, **fields)
        sampler = sampler_of(self._num_drafts % 5, len(rows), self.device, self._table)
        self._num_drafts += 1
        plain, found = (drafter.draft(batch, sampler) for drafter in self.drafters)
        assert found.logits is not None
        assert plain.logits is not None
        assert found.token_ids.shape == plain.token_ids.shape
        self._read += [(x, x.clone()) for x in (found.token_ids, found.logits)]
        # Behind another token other logits follow: only up to the first that differs.
        same = (plain.token_ids == found.token_ids).cpu().long().cumprod(1)
        counts = torch.cat([torch.ones(len(rows), 1), same[:, :-1]], dim=1).bool()
        ours, theirs = found.logits.cpu()[counts], plain.logits.cpu()[counts]
        torch.testing.assert_close(ours, theirs, atol=near, rtol=near, equal_nan=True)
        self._same.append(same.flatten())

    def assert_most_is_the_same(self, least: float) -> None:
        assert torch.cat(self._same).float().mean() > least
        for result, copy in self._read:  # though graphs were replayed since
            assert torch.equal(result.nan_to_num(), copy.nan_to_num())


def compare_chains(
    make: Make,
    dtype: torch.dtype,
    device: torch.device,
    near: float,
    library: Library | None = None,
    *,
    num_steps: int = 24,
) -> BothChains:
    """Chains behind contexts that grow and shrink, ends of rows, branches, and gaps of any lengths.

    `library`: see `BothChains`.
    """
    both = BothChains(make, dtype, device, library)
    for row, count in enumerate((5, 16, 17, 40)):
        both.extend(row, count)
    if not both.captured.holds_pending_tokens:
        both.extend(2, 3, broken=1)
    for step in range(num_steps):
        _take(both, step, near)
    both.assert_most_is_the_same(0.95 if dtype is torch.float32 else 0.8)
    for row in range(4):
        for layer in range(both.captured.context.cache.num_layers):
            plain, found = (each.context.read(row, layer) for each in both.drafters)
            for ours, theirs in zip(found, plain, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs.cpu(), atol=near, rtol=near)
    return both


def _take(both: BothChains, step: int, near: float) -> None:
    """One step, of one of four kinds, with any of the rows."""
    rng, context_len = both.rng, both.captured.context_len
    rows = rng.integers(0, 4, rng.integers(1, 7)).tolist()
    kind = step % 4
    if kind == 0:
        both.assert_drafts_are_near(rows, near)
    elif kind == 1:
        ends = [int(rng.integers(1, context_len(row) + 1)) for row in rows]
        both.assert_drafts_are_near(rows, near, context_lens=ends, most=1 + step % 3)
    elif kind == 3:
        both.extend(rows[0], int(rng.integers(1, 4)))
    elif both.captured.holds_pending_tokens:
        row, length = rows[0], context_len(rows[0])
        both.extend(row, int(rng.integers(1, 6)))
        both.assert_drafts_are_near(rows, near)
        both.truncate(row, length)
    else:
        gaps = [rng.integers(1, 60, rng.integers(0, 4)).tolist() for _ in rows]
        both.assert_drafts_are_near(rows, near, gap_ids=gaps)
