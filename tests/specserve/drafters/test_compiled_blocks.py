"""Blocks drawn in one call are those that torch draws, slot by slot."""

import pytest
import torch

from specserve.backends.cpu import block_kernels
from specserve.drafters import compiled_blocks
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.compiled_blocks import CompiledDraws
from specserve.drafters.markov_head import GatedHead, VanillaHead
from specserve.models.linear import Kernels
from specserve.noise import OnceKeys
from specserve.sampling.drawing import BlockLayout, Coupled, Greedy, Sampled
from specserve.sampling.noise_table import NoiseTable
from specserve.sampling.shaping import shaped
from tests.specserve.drafters.requests_fields import SHAPED, states_under

pytest.importorskip("numba")
KINDS = ["greedy", "coupled", "sampled", "greedy shaped", "coupled shaped", "sampled shaped"]
RULES = [pytest.param(kind, marks=pytest.mark.slow if SHAPED in kind else ()) for kind in KINDS]
NUM_SLOTS, RANK = 5, 8
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(not compiled_blocks.can_compile(), reason="no compiled products"),
    pytest.mark.usefixtures("one_thread"),
]


def test_they_are_usable_wherever_products_are_compiled():
    assert compiled_blocks.are_usable()


def head_of(num_tokens):
    torch.manual_seed(0)
    kernels = Kernels(dtype=torch.float32, device=CPU, deterministic=False)
    weight = torch.randn(num_tokens, RANK)
    return VanillaHead(torch.randn(num_tokens, RANK), kernels.linear([weight]))


def rule_of(kind, count):
    temperatures = torch.tensor([1.0, 0.4, 0.0, 2.0] * count)[:count]
    if kind.endswith(SHAPED):
        rule = rule_of(kind.removesuffix(SHAPED), count)
        return shaped(rule, states_under(temperatures * (kind != "greedy shaped")))
    numbers = torch.arange(count)
    if kind == "greedy":
        return Greedy()
    if kind == "coupled":
        return Coupled(temperatures, numbers, numbers // 2, NoiseTable())
    zeros = [0] * count
    keys = OnceKeys.build(zeros, zeros, zeros, numbers.tolist(), zeros, CPU)
    return Sampled(temperatures, keys, num_kept=20)


class Blocks:
    """What a drafter has when its draws begin."""

    def __init__(self, kind, num_blocks, num_tokens):
        self.head, self.rule = head_of(num_tokens), rule_of(kind, num_blocks)
        self.anchors = torch.arange(num_blocks) + 3
        self.layout = BlockLayout(self.anchors + 10, NUM_SLOTS, num_tokens, None)
        self.base = torch.randn(num_blocks, NUM_SLOTS, num_tokens)

    def by_torch(self):
        logits, drawing = self.base.clone(), self.rule.begin(self.layout)
        run, drawn = self.head.begin(logits, logits), [self.anchors[:, None]]
        for slot in range(NUM_SLOTS):
            drawn.append(drawing.draw(slot, run.logits(slot, drawn[-1][:, 0])[:, None]))
        return torch.cat(drawn[1:], 1), logits, drawing.law()

    def at_once(self):
        logits, drawing = self.base.clone(), self.rule.begin(self.layout)
        draws = CompiledDraws.of(self.head)
        assert draws is not None
        return draws.draw(logits, self.anchors, drawing), logits, drawing


@pytest.mark.parametrize("num_tokens", [64, 71])
@pytest.mark.parametrize("num_blocks", [1, 3, 14])
@pytest.mark.parametrize("kind", RULES)
@torch.inference_mode()
def test_tokens_logits_and_laws_are_torchs(kind, num_blocks, num_tokens):
    blocks = Blocks(kind, num_blocks, num_tokens)
    expected, logits, law = blocks.by_torch()
    found, ours, drawing = blocks.at_once()
    assert torch.equal(found, expected)
    torch.testing.assert_close(ours, logits)
    if kind.startswith("sampled"):
        torch.testing.assert_close(drawing.law().probs, law.probs)
        assert torch.equal(drawing.law().ids, law.ids)
    else:
        assert law is None


@torch.inference_mode()
def test_a_block_is_drawn_alike_alone_and_among_others():
    together = Blocks("coupled", 14, 64)
    few = Blocks("coupled", 3, 64)
    few.base = together.base[:3].clone()
    found, logits, _ = together.at_once()
    alone, ours, _ = few.at_once()
    assert torch.equal(found[:3], alone)
    assert torch.equal(logits[:3], ours)


class _Drafter:
    """As much of a `BlockDrafter` as draws serially."""

    law_confidence = confidence_head = None
    gamma = NUM_SLOTS

    def __init__(self, head):
        self._draws = CompiledDraws.of(head)

    draw = BlockDrafter._draw_serially


@pytest.mark.parametrize("broken", range(NUM_SLOTS))
@pytest.mark.parametrize("kind", [RULES[2], RULES[5]])
@torch.inference_mode()
def test_from_a_slot_without_a_law_torch_goes_on(kind, broken):
    """Logits that are no numbers have none; others of the wave are drawn as they would be."""
    blocks = Blocks(kind, 4, 64)
    whole, _, _ = blocks.by_torch()
    blocks.base[2, broken] = torch.nan
    found, _, _ = blocks.at_once()
    assert found.shape == (4, broken)
    assert torch.equal(found, whole[:, :broken])
    drawing = blocks.rule.begin(blocks.layout)
    drafter = _Drafter(blocks.head)
    drawn = drafter.draw(blocks.head, blocks.base, blocks.base, blocks.anchors, drawing)
    others = [0, 1, 3]
    assert torch.equal(drawn.token_ids[others], whole[others])
    assert drawn.law.ids.shape[0] == 4 * NUM_SLOTS


def test_who_has_several_threads_is_told_nothing_is_wrong(caplog):
    """And whoever has one later has them."""
    head = head_of(64)
    compiled_blocks.are_usable.cache_clear()
    torch.set_num_threads(2)
    assert CompiledDraws.of(head) is None
    assert not caplog.records
    torch.set_num_threads(1)
    assert CompiledDraws.of(head) is not None


@torch.inference_mode()
def test_what_has_no_compiled_draws_is_left_to_torch(monkeypatch):
    blocks = Blocks("greedy", 3, 64)
    linear = blocks.head.output
    gated = GatedHead(blocks.head.embedding, linear, linear, linear, torch.zeros(RANK))
    assert CompiledDraws.of(gated) is None
    assert CompiledDraws.of(None) is None
    reduced = BlockLayout(blocks.anchors, NUM_SLOTS, 500, torch.arange(64) * 3)
    draws = CompiledDraws.of(blocks.head)
    assert draws.draw(blocks.base, blocks.anchors, Greedy().begin(reduced)) is None
    torch.set_num_threads(2)
    assert draws.draw(blocks.base, blocks.anchors, Greedy().begin(blocks.layout)) is None
    monkeypatch.setattr(compiled_blocks, "are_usable", lambda: False)
    assert CompiledDraws.of(blocks.head) is None


@pytest.mark.parametrize("wrong", ["token", "logits"])
def test_wrong_ones_are_not_used(wrong, monkeypatch):
    draw_slots = block_kernels.draw_slots

    def spoilt(logits, anchor_ids, markov, draws, drawn):
        count = draw_slots(logits, anchor_ids, markov, draws, drawn)
        if wrong == "token":
            drawn.token_ids[2, 1] += 1
        else:
            logits[1, 2, 3] += 1
        return count

    monkeypatch.setattr(block_kernels, "draw_slots", spoilt)
    with pytest.raises(ArithmeticError):
        compiled_blocks._check()
