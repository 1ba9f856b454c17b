"""A drafter of blocks whose passes are captured and one whose are not, asked the same."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from specserve import noise
from specserve.backends.base import Backend
from specserve.backends.cuda import noise as captured_noise
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.block_draws import CapturedDraws
from specserve.backends.cuda.block_passes import CapturedBlockPasses
from specserve.backends.cuda.flash import Library
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter, SpeculationBatch
from specserve.noise import OnceKeys, Purpose
from specserve.sampling.draft_sampler import (
    BlockLayout,
    Coupled,
    DraftSampler,
    DraftSampling,
    Greedy,
    SaguaroFactors,
    Sampled,
)
from specserve.sampling.logits_processors import with_processors
from specserve.sampling.noise_table import NoiseTable
from tests.exactness.speculative import VOCAB_SIZE
from tests.specserve.sampling.test_sampling import state

Make = Callable[[torch.dtype, Backend], Drafter]
# Of all blocks' tokens, those before the first of the block that differs. One block tells nothing:
# where two tokens are as likely, a bit decides. With a bit of bfloat16 more or less in half of the
# places of every product they were .88 to .99 of all in 60 runs on a CPU, with errors of 3e-4 in
# every place .98 and more; the errors of logits were .02 to .03 where the largest may be .3.
_LEAST_SAME = {torch.float32: 0.95, torch.bfloat16: 0.8}
_ERROR = 1 / 6  # root mean square, of what a single one may be


@dataclass
class Noted:
    """A sampler, and where it was asked to draw: nobody but a drafter knows that."""

    sampler: DraftSampler
    layout: BlockLayout | None = None

    def begin(self, layout: BlockLayout) -> DraftSampling:
        self.layout = layout
        return self.sampler.begin(layout)

    def again(self, sampler: DraftSampler) -> DraftSampling:
        assert self.layout is not None
        return sampler.begin(self.layout)


class Both:
    """A drafter whose passes are captured and one whose are not, with the same contexts."""

    def __init__(
        self,
        make: Make,
        dtype: torch.dtype,
        device: torch.device,
        library: Library | None = None,
    ) -> None:
        """`library`: flashinfer or what stands in for it, by which the captured one attends."""
        plain = make(dtype, TorchBackend(device))
        captured = make(dtype, CudaGraphBackend(device, library))
        assert isinstance(plain, BlockDrafter)
        assert isinstance(captured, BlockDrafter)
        assert isinstance(captured._passes, CapturedBlockPasses)
        assert isinstance(captured._draws, CapturedDraws)
        self.captured, self.passes, self.draws = captured, captured._passes, captured._draws
        self.drafters = plain, captured
        self._read: list[tuple[torch.Tensor, torch.Tensor]] = []  # results, and copies of then
        self._same: list[torch.Tensor] = []  # of every token
        self._errors: list[torch.Tensor] = []  # of every logit
        self._dtype, self.device = dtype, device
        self._rng = np.random.default_rng(3)

    def extend(
        self, row: int, count: int, *, pending: bool = False, broken: int | None = None
    ) -> None:
        """`broken`: a token whose features are not finite."""
        features = torch.from_numpy(self._rng.normal(size=(count, self.captured.feature_size)))
        if broken is not None:
            features[broken] = torch.nan
        update = ContextUpdate(
            rows=[row],
            starts=[self.captured.context_len(row)],
            counts=[count],
            token_ids=self._ints(1, 60, count),
            features=None if pending else features.to(self.device, self._dtype),
        )
        for drafter in self.drafters:
            drafter.extend(update)

    def _ints(self, low: int, high: int, count: int) -> torch.Tensor:
        return torch.from_numpy(self._rng.integers(low, high, count)).to(self.device)

    def truncate(self, row: int, length: int) -> None:
        for drafter in self.drafters:
            drafter.truncate(row, length)

    def assert_drafts_are_near(
        self,
        rows: list[int],
        sampler: DraftSampler,
        near: float,
        *,
        unshaped: DraftSampler | None = None,
        **fields: object,
    ) -> None:
        """`unshaped`: what draws the same from logits that `sampler` has edited and cut."""
        anchors = self._ints(1, 60, len(rows))
        batch = DraftBatch(rows, anchors, keep_logits=True, **fields)
        noted = Noted(sampler)
        plain, found = (drafter.draft(batch, noted) for drafter in self.drafters)
        draft_probs = (
            () if found.draft_probs is None else (found.draft_probs.ids, found.draft_probs.probs)
        )
        for result in (found.token_ids, found.logits, found.confidences, *draft_probs):
            if result is not None:
                self._read.append((result, result.clone()))
        assert_drawn_from_its_logits(found, noted.again(unshaped or sampler))
        assert found.logits is not None
        assert plain.logits is not None
        # Behind another token other logits follow: only up to the first that differs.
        same = (plain.token_ids == found.token_ids).cpu().long().cumprod(1)
        counts = torch.cat([torch.ones(len(rows), 1), same[:, :-1]], dim=1).bool()
        for kind in (of_logits, of_confidences):
            ours, theirs = kind(found), kind(plain)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                ours, theirs = ours.cpu()[counts], theirs.cpu()[counts]
                torch.testing.assert_close(ours, theirs, atol=near, rtol=near)
        self._same.append(same.flatten())
        errors = (found.logits.cpu() - plain.logits.cpu())[counts].flatten()
        self._errors.append(errors[errors.isfinite()])  # others were cut in both

    def assert_most_is_the_same(self, near: float) -> None:
        """Of all drafts: what is wrong a little everywhere differs in many tokens and logits."""
        same, errors = torch.cat(self._same), torch.cat(self._errors)
        assert same.float().mean() > _LEAST_SAME[self._dtype]
        assert errors.square().mean().sqrt() < _ERROR * near

    def assert_nothing_has_changed(self) -> None:
        """Of what was read of CUDA graphs that were replayed since."""
        for result, copy in self._read:
            assert torch.equal(result.nan_to_num(), copy.nan_to_num())


def assert_drawn_from_its_logits(found: SpeculationBatch, sampling: DraftSampling) -> None:
    """Draws its tokens again: so another token than the plain drafter's is by other logits."""
    logits = found.logits
    assert logits is not None
    slots = logits.clone().split(1, dim=1)
    drawn = torch.cat([sampling.draw(slot, each) for slot, each in enumerate(slots)], dim=1)
    assert torch.equal(found.token_ids, drawn)
    ours, theirs = of_probs(found), of_probs(SpeculationBatch(drawn, sampling.draft_probs(), None))
    assert (ours is None) == (theirs is None)
    if ours is not None:
        torch.testing.assert_close(ours, theirs)


def of_logits(drawn: SpeculationBatch) -> torch.Tensor | None:
    return drawn.logits


def of_confidences(drawn: SpeculationBatch) -> torch.Tensor | None:
    return drawn.confidences


def of_probs(drawn: SpeculationBatch) -> torch.Tensor | None:
    """[B, G, V], whatever the order of its entries."""
    if drawn.draft_probs is None:
        return None
    ids, probs = drawn.draft_probs.ids.cpu(), drawn.draft_probs.probs.cpu()
    dense = torch.zeros(len(ids), VOCAB_SIZE + 1).scatter_add_(1, ids.clamp(max=VOCAB_SIZE), probs)
    return dense.view(*drawn.token_ids.shape, -1)


def sampler_of(kind: int, num_blocks: int, device: torch.device, table: NoiseTable) -> DraftSampler:
    temperatures = torch.linspace(0, 1, num_blocks).to(device)
    seeds, zeros = torch.arange(num_blocks, device=device), [0] * num_blocks
    keys = OnceKeys.build(range(num_blocks), zeros, zeros, range(num_blocks), zeros, device)
    return [
        Greedy(),
        Coupled(temperatures, seeds, torch.zeros_like(seeds)),
        Sampled(temperatures, keys, 16),
        Coupled(temperatures, seeds, torch.zeros_like(seeds), table),
        Sampled(temperatures, keys, 16, SaguaroFactors(temperatures, 3)),
    ][kind]


def compare_blocks(
    make: Make,
    dtype: torch.dtype,
    device: torch.device,
    near: float,
    library: Library | None = None,
    *,
    num_steps: int = 28,
) -> None:
    """Blocks of all kinds, behind contexts that grow and shrink. `library`: see `Both`."""
    both, rng = Both(make, dtype, device, library), np.random.default_rng(7)
    table = NoiseTable(4 * 64 * 40)
    for row, count in enumerate((5, 16, 17, 40)):
        both.extend(row, count)
    both.extend(3, 5, broken=2)
    for step in range(num_steps):
        rows = rng.integers(0, 4, rng.integers(1, 7)).tolist()
        sampler = sampler_of(step % 5, len(rows), device, table)
        kind = step % 7 % 4
        if kind == 0:
            both.assert_drafts_are_near(rows, sampler, near)
        elif kind == 1:
            gaps = [rng.integers(1, 60, rng.integers(0, 5)).tolist() for _ in rows]
            both.assert_drafts_are_near(rows, sampler, near, gap_ids=gaps, min_gap=step % 3)
        elif kind == 2:
            row, length = rows[0], both.captured.context_len(rows[0])
            both.extend(row, int(rng.integers(1, 6)), pending=True)
            ends = [int(rng.integers(1, both.captured.context_len(each) + 1)) for each in rows]
            both.assert_drafts_are_near(rows, sampler, near, context_lens=ends)
            both.assert_drafts_are_near(rows, sampler, near)  # its entries are there
            both.truncate(row, length)
        else:
            both.extend(rows[0], int(rng.integers(1, 4)))
    both.assert_nothing_has_changed()
    both.assert_most_is_the_same(near)
    entered, drafted = both.passes.num_graphs
    assert entered > 1
    assert drafted > 4
    assert len(both.passes._entries) > 3
    assert len(both.draws) > 4
    for row in range(4):
        for layer in range(both.captured.backbone.spec.decoder.num_layers):
            plain, found = (each.context.read(row, layer) for each in both.drafters)
            for ours, theirs in zip(found, plain, strict=True):
                torch.testing.assert_close(ours.cpu(), theirs.cpu(), atol=near, rtol=near)


def compare_cuts(make: Make, device: torch.device) -> None:
    """Draws of requests some of which truncate, by samplers of every kind."""
    both, rng = Both(make, torch.float32, device), np.random.default_rng(8)
    table = NoiseTable(4 * 64 * 40)
    for row, count in enumerate((5, 16, 17, 40)):
        both.extend(row, count)
    cuts = [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9}]
    for step in range(24):
        rows = rng.integers(0, 4, rng.integers(1, 7)).tolist()
        sampler = sampler_of(step % 4, len(rows), device, table)
        temperatures = [0.0] * len(rows) if step % 4 == 0 else np.linspace(0, 1, len(rows))
        states = [
            state(temperature=float(each), **cuts[rng.integers(0, len(cuts))])
            for each in temperatures
        ]
        both.assert_drafts_are_near(rows, with_processors(sampler, states), 2e-3, unshaped=sampler)
    both.assert_most_is_the_same(2e-3)
    kinds = {key.kind for key in both.draws._graphs._found}
    assert len({kind[-1] for kind in kinds if len(kind) == 3}) == 2  # coupled and sampled, cut


def compare_noise(device: torch.device) -> None:
    """Bit for bit, of every kind."""

    def on_device(numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(device)

    captured_noise._graphs.cache_clear()
    rng = np.random.default_rng(0)
    wanted = []
    for num_rows in (1, 2, 3, 5, 5, 8, 3):
        columns = rng.integers(-(2**62), 2**62, (2, num_rows)), rng.integers(0, 500, (3, num_rows))
        seeds, nonces = map(on_device, columns[0])
        samples, positions, branches = map(on_device, columns[1])
        ids = on_device(rng.integers(0, 64, (num_rows, 7)))
        keys = OnceKeys(nonces, positions, samples, branches << 8)
        wanted += [
            partial(noise.exponential_noise, seeds, samples, positions, Purpose.OUTPUT, 64),
            partial(noise.exponential_noise_at, seeds, samples, positions, Purpose.OUTPUT, ids),
            partial(keys.exponential, Purpose.DRAFT, 10),
            partial(keys.exponential, Purpose.RECOVERY, 64),
            partial(keys.uniform, Purpose.ACCEPTANCE),
        ]
    captured_noise._KERNELS.clear()  # whatever other tests have chosen
    plain = [make().cpu() for make in wanted]
    CudaGraphBackend(device)
    found = [make() for make in wanted]
    assert len(captured_noise._graphs()) == 4 * 4  # numbers of rows, and kinds that share no shape
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.equal(ours.cpu(), theirs)
