"""Pending tokens computed with the next pass leave the contexts that computing at once would."""

import random

import pytest
import torch

from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cpu.passes import CompiledPasses
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.block_passes import TorchBlockPasses
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.uncomputed_tokens import UncomputedTokens
from specserve.sampling.draft_sampler import Greedy
from tests.draft_node.prespeculation.rounds import VOCAB, dspark
from tests.specserve.drafters import checkpoints


class Twins:
    """A drafter, and one that computes pending tokens at once; everything is done to both."""

    def __init__(self, lazy, eager, seed):
        self.lazy, self.eager = lazy, eager
        self.source = random.Random(seed)
        self.lengths = dict.fromkeys(range(4), 0)
        self.num_both = 0  # passes of pending tokens and of gaps together

    def do(self, act):
        found = act(self.lazy), act(self.eager)
        with torch.inference_mode():
            self.eager._compute_entering()
        return found

    def extend(self, *, is_verified):
        rows = self.source.sample(range(4), self.source.randint(1, 3))
        counts = [self.source.randint(1, 4) for _ in rows]
        starts = [self.lengths[row] for row in rows]
        token_ids = torch.tensor([self.source.randrange(VOCAB) for _ in range(sum(counts))])
        features = torch.randn(sum(counts), self.lazy.feature_size) if is_verified else None
        self.do(lambda d: d.extend(ContextUpdate(rows, starts, counts, token_ids, features)))
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count

    def shorten(self):
        row = self.source.randrange(4)
        length = self.source.randint(max(0, self.lengths[row] - 4), self.lengths[row])
        if self.source.random() < 0.2:
            length = 0
            self.do(lambda d: d.free(row))
        else:
            self.do(lambda d: d.truncate(row, length))
        self.lengths[row] = length

    def draft(self):
        live = [row for row, length in self.lengths.items() if length]
        if not live:
            return
        rows = [self.source.choice(live) for _ in range(self.source.randint(1, 4))]
        lengths = [self.source.randint(1, self.lengths[row]) for row in rows]
        anchors = torch.tensor([self.source.randrange(VOCAB) for _ in rows])
        gaps = None
        if self.source.random() < 0.5:
            gaps = [
                [self.source.randrange(VOCAB) for _ in range(self.source.randrange(4))]
                for _ in rows
            ]
        batch = DraftBatch(rows, anchors, gaps, lengths, keep_logits=True)
        self.num_both += gaps is not None and self.lazy._uncomputed.most > 0
        lazy, eager = self.do(lambda d: d.draft(batch, Greedy()))
        assert lazy.logits.isfinite().all()
        torch.testing.assert_close(lazy.logits[:, 0], eager.logits[:, 0], atol=1e-3, rtol=1e-3)
        for row in live:
            for layer in range(self.lazy.context.cache.num_layers):
                for mine, others in zip(
                    self.lazy.context.read(row, layer),
                    self.eager.context.read(row, layer),
                    strict=True,
                ):
                    torch.testing.assert_close(mine, others, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_when_they_are_computed_makes_no_difference(
    seed, is_compiled, target, tmp_path, monkeypatch
):
    if not is_compiled:
        monkeypatch.setattr(checkpoints, "BACKEND", TorchBackend(torch.device("cpu")))
    elif CpuBackend.why_not():
        pytest.skip("no compiled forwards here")
    torch.manual_seed(seed)
    twins = Twins(dspark(tmp_path / "a", target), None, seed)
    twins.eager = dspark(tmp_path / "a", target)
    for _ in range(200):
        kind = twins.source.random()
        if max(twins.lengths.values()) > 24 or kind < 0.3:
            twins.shorten()
        elif kind < 0.55:
            twins.extend(is_verified=False)
        elif kind < 0.7:
            twins.extend(is_verified=True)
        else:
            twins.draft()
    assert twins.num_both > 5
    assert isinstance(twins.lazy._passes, CompiledPasses if is_compiled else TorchBlockPasses)


def test_what_was_cut_off_is_not_computed():
    tokens = UncomputedTokens()
    tokens.add([1, 2], [10, 5], [3, 2], [7, 8, 9, 4, 3])
    tokens.truncate(1, 11)
    tokens.truncate(2, 0)
    assert 1 in tokens
    assert 2 not in tokens
    waiting = tokens.all()
    assert (waiting.rows, waiting.starts, waiting.counts) == ([1], [10], [1])
    assert waiting.token_ids == [7]
    tokens.computed()
    assert tokens.all() is None


def pending(drafter):
    drafter.extend(
        ContextUpdate([0], [0], [3], torch.tensor([5, 6, 7]), torch.zeros(3, drafter.feature_size))
    )
    drafter.extend(ContextUpdate([0], [3], [2], torch.tensor([8, 9]), None))
    return DraftBatch([0], torch.tensor([4]), keep_logits=True)


def test_a_pass_that_failed_leaves_them_for_the_next(target, tmp_path, monkeypatch):
    drafters = [dspark(tmp_path / "a", target) for _ in range(2)]
    sound, shaken = [(drafter, pending(drafter)) for drafter in drafters]
    with monkeypatch.context() as broken:
        broken.setattr(shaken[0]._passes, "blocks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            shaken[0].draft(shaken[1], Greedy())
    expected, found = (d.draft(batch, Greedy()).logits for d, batch in (sound, shaken))
    torch.testing.assert_close(found, expected)


def test_features_that_are_not_finite_spoil_no_row_but_their_own(target, tmp_path):
    drafter = dspark(tmp_path / "a", target)
    batch = pending(drafter)
    expected = drafter.draft(batch, Greedy()).logits
    broken = torch.full((40, drafter.feature_size), torch.nan)
    drafter.extend(ContextUpdate([1], [0], [40], torch.zeros(40, dtype=torch.long), broken))
    drafter.free(0)
    drafter.free(1)  # its pages are the next that anybody gets
    found = drafter.draft(pending(drafter), Greedy()).logits
    torch.testing.assert_close(found, expected)
