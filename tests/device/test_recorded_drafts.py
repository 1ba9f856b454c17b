"""Recorded noise and recorded passes of block drafters: those of torch's own operations."""

from functools import partial

import numpy as np
import pytest
import torch

from draft_node.drafters.block_drafter import BlockDrafter
from draft_node.drafters.recorded_passes import RecordedBlockPasses
from specserve import cuda_graphs, noise
from specserve.decoding.drawing import Coupled, DrawingRule, Greedy, Sampled
from specserve.decoding.verification.rule import VerificationRule
from specserve.drafting import ContextUpdate, DraftBatch
from specserve.noise import OnceKeys, Purpose
from target_node.miss_policy import Miss
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.test_target import finished
from tests.device.workload import both_kinds
from tests.device.worlds import drafter_on_device, pair_on_device, target_on_device
from tests.exactness.speculative import Models
from tests.target_node.scripted_drafts import Drafting

NAMES = ["dspark vanilla", "dspark gated", "dspark rnn", "dflash fill in", "speculators"]
QUICK = ["dspark vanilla", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]


def on_device(numbers: list[int] | np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, dtype=np.int64)).to(DEVICE)


def test_recorded_noise_has_the_bits_of_other_noise(cuda: PretendedCuda):
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
            partial(keys.exponential_at, Purpose.RECOVERY, ids),
            partial(keys.uniform, Purpose.ACCEPTANCE),
        ]
    plain = [make().cpu() for make in wanted]
    cuda_graphs.use()
    found = [make() for make in wanted]
    assert len(noise._recordings()) == 4 * 4  # numbers of rows, and kinds that share no shape
    for ours, theirs in zip(found, plain, strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_noise_of_many_lanes_is_not_recorded(cuda: PretendedCuda):
    cuda_graphs.use()
    rows = on_device([1, 2])
    noise.exponential_noise(rows, rows, rows, Purpose.OUTPUT, noise._MOST_RECORDED_LANES * 4)
    assert len(noise._recordings()) == 0


class Both:
    """A drafter whose passes are recorded and one whose are not, with the same contexts."""

    def __init__(self, models: Models, name: str, dtype: torch.dtype) -> None:
        plain = drafter_on_device(models, name, dtype)
        cuda_graphs.use()
        recorded = drafter_on_device(models, name, dtype)
        assert isinstance(plain, BlockDrafter)
        assert isinstance(recorded, BlockDrafter)
        assert isinstance(recorded._passes, RecordedBlockPasses)
        self.recorded, self.passes = recorded, recorded._passes
        self._drafters = plain, recorded
        self._dtype = dtype
        self._rng = np.random.default_rng(3)

    def extend(self, row: int, count: int, *, in_flight: bool = False) -> None:
        features = torch.from_numpy(self._rng.normal(size=(count, self.recorded.feature_size)))
        update = ContextUpdate(
            rows=[row],
            starts=[self.recorded.context_len(row)],
            counts=[count],
            token_ids=on_device(self._rng.integers(1, 60, count)),
            features=None if in_flight else features.to(DEVICE, self._dtype),
        )
        for drafter in self._drafters:
            drafter.extend(update)

    def truncate(self, row: int, length: int) -> None:
        for drafter in self._drafters:
            drafter.truncate(row, length)

    def assert_drafts_are_near(
        self, rows: list[int], rule: DrawingRule, near: float, **fields: object
    ) -> None:
        anchors = on_device(self._rng.integers(1, 60, len(rows)))
        batch = DraftBatch(rows, anchors, keep_logits=True, **fields)
        plain, found = (drafter.draft(batch, rule) for drafter in self._drafters)
        assert found.logits is not None
        assert plain.logits is not None
        # Behind another token other logits follow: only before the first that differs.
        same = (plain.token_ids == found.token_ids).cpu().long().cumprod(1)
        assert same.float().mean() > 0.9
        counts = torch.cat([torch.ones(len(rows), 1), same[:, :-1]], dim=1).bool()
        for name in ("logits", "confidences"):
            ours, theirs = getattr(found, name), getattr(plain, name)
            assert (ours is None) == (theirs is None)
            if ours is not None:
                ours, theirs = ours.cpu()[counts], theirs.cpu()[counts]
                torch.testing.assert_close(ours, theirs, atol=near, rtol=near)


def rule_of(kind: int, num_blocks: int) -> DrawingRule:
    temperatures = torch.linspace(0, 1, num_blocks).to(DEVICE)
    seeds, zeros = on_device(np.arange(num_blocks)), [0] * num_blocks
    keys = OnceKeys.build(range(num_blocks), zeros, zeros, range(num_blocks), zeros, DEVICE)
    return [
        Greedy(),
        Coupled(temperatures, seeds, on_device(zeros)),
        Sampled(temperatures, keys, 16),
    ][kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", QUICK)
def test_blocks_are_those_of_a_pass_that_is_not_recorded(
    cuda: PretendedCuda, models: Models, name: str, dtype: torch.dtype
):
    both, rng = Both(models, name, dtype), np.random.default_rng(7)
    near = 1e-4 if dtype is torch.float32 else 0.1
    for row, count in enumerate((5, 16, 17, 40)):
        both.extend(row, count)
    for step in range(24):
        rows = rng.integers(0, 4, rng.integers(1, 7)).tolist()
        rule = rule_of(step % 3, len(rows))
        kind = step % 4
        if kind == 0:
            both.assert_drafts_are_near(rows, rule, near)
        elif kind == 1:
            gaps = [rng.integers(1, 60, rng.integers(0, 5)).tolist() for _ in rows]
            both.assert_drafts_are_near(rows, rule, near, gap_ids=gaps, min_gap=step % 3)
        elif kind == 2:
            row, length = rows[0], both.recorded.context_len(rows[0])
            both.extend(row, int(rng.integers(1, 6)), in_flight=True)
            ends = [int(rng.integers(1, both.recorded.context_len(each) + 1)) for each in rows]
            both.assert_drafts_are_near(rows, rule, near, context_lens=ends)
            both.assert_drafts_are_near(rows, rule, near)  # its entries are there
            both.truncate(row, length)
        else:
            both.extend(rows[0], int(rng.integers(1, 4)))
    entered, drafted = both.passes.num_recordings
    assert entered > 1
    assert drafted > 4


def test_what_fits_no_shape_is_not_recorded(cuda: PretendedCuda, models: Models):
    both = Both(models, "dspark vanilla", torch.float32)
    both.extend(0, 30)
    both.extend(0, 20, in_flight=True)  # more than a recording takes
    both.assert_drafts_are_near([0], Greedy(), 1e-4)
    assert both.passes.num_recordings == (0, 1)
    gap = list(range(1, 30))
    both.assert_drafts_are_near([0], Greedy(), 1e-4, gap_ids=[gap])
    assert both.passes.num_recordings == (0, 1)


def texts(found: dict) -> dict:
    return {key: tokens for key, (tokens, *_) in found["samples"].items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", list(VerificationRule))
def test_a_target_whose_draft_is_recorded(
    cuda: PretendedCuda, models: Models, name: str, rule: VerificationRule
):
    """Seeded requests say what they say without drafts, others end well."""
    asked = partial(both_kinds, max_tokens=12)
    plain = texts(finished(target_on_device(models), asked()))
    cuda_graphs.use()
    target = target_on_device(models, name, default_rule=rule)
    found = texts(finished(target, asked()))
    assert target.sampler.num_broken_laws == 0
    seeded = [key for key in found if key[0].startswith("seeded")]
    assert len(seeded) >= 3
    assert {key: found[key] for key in seeded} == {key: plain[key] for key in seeded}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark vanilla", "dspark rnn", "dflash fill in"])
def test_a_draft_process_whose_passes_are_recorded(cuda: PretendedCuda, models: Models, name: str):
    cuda_graphs.use()
    settings = {"default_rule": VerificationRule.FORESEEABLE, "miss": Miss.DRAFT_NOW}
    with pair_on_device(models, name, Drafting(wave=4, fan_out=8, pace=(4,)), **settings) as pair:
        finished(pair, both_kinds())
        node = pair.drafts[0].node
        assert node is not None
        assert node.presolve.failures.total == 0
        assert pair.sampler.num_broken_laws == 0
        assert pair.asynchronous.status().num_hits > 2
