"""The compiled draw from a truncated law against torch's, which stays its definition."""

import numpy as np
import pytest
import torch

from specserve.backends.cpu import compiled
from specserve.noise import OnceKeys
from specserve.sampling import law_kernels, ranks
from specserve.sampling.draft_law import PAD_ID, DraftLaw
from specserve.sampling.drawing import BlockLayout, Sampled, likeliest
from tests.specserve.sampling.laws import law_of_likeliest

pytestmark = pytest.mark.skipif(compiled.numba is None, reason="no numba here")


def draws(logits, temperatures, num_kept):
    num_blocks, num_slots, num_tokens = logits.shape
    keys = OnceKeys.build(
        range(num_blocks), [0] * num_blocks, [3] * num_blocks, [0] * num_blocks, [7] * num_blocks
    )
    rule = Sampled(torch.tensor(temperatures, dtype=torch.float32), keys, num_kept)
    positions = torch.full((num_blocks,), 7)
    return rule.begin(BlockLayout(positions, num_slots, num_tokens, None))


def both(logits, temperatures, num_kept):
    """Tokens and laws, compiled and by torch."""
    found = []
    for name in ("_draw_compiled", "_draw_by_torch"):
        drawing = draws(logits, temperatures, num_kept)
        found.append((getattr(drawing, name)(0, logits), drawing.law()))
    return found


def assert_same_draws(logits, temperatures, num_kept):
    (tokens, law), (expected, expected_law) = both(logits, temperatures, num_kept)
    assert torch.equal(law.ids, expected_law.ids)
    torch.testing.assert_close(law.probs, expected_law.probs, atol=1e-9, rtol=3e-6)
    assert law.sound(logits.shape[2]).all()
    assert torch.equal(
        tokens, expected
    )  # laws differ by ulps, and none of these races ties to them
    return tokens, law


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 300, 4099])
@pytest.mark.parametrize("num_kept", [1, 5, 512])
def test_laws_and_tokens_are_torchs(num_tokens, num_kept):
    generator = torch.Generator().manual_seed(num_tokens)
    for scale in (0.1, 3.0):
        logits = scale * torch.randn(30, 3, num_tokens, generator=generator) - 5
        temperatures = [(0.0, 0.4, 1.0, 1.5)[place % 4] for place in range(30)]
        tokens, law = assert_same_draws(logits, temperatures, num_kept)
        assert law.ids.shape == (90, min(num_kept, num_tokens))
        assert torch.equal(tokens[::4], logits[::4].argmax(-1))


def test_a_row_is_drawn_by_its_own_temperature_and_noise():
    generator = torch.Generator().manual_seed(4)
    logits, temperatures = torch.randn(64, 40, generator=generator), torch.linspace(0.2, 2, 64)
    noise = -torch.rand(64, 8, generator=generator).log()
    ids, probs = np.empty((64, 8), np.int64), np.empty((64, 8), np.float32)
    winners = np.empty(64, np.int64)
    given = logits.numpy(), (1 / temperatures).numpy(), noise.numpy()
    assert law_kernels.race_of_likeliest(*given, ids, probs, winners)
    law = law_of_likeliest((logits / temperatures[:, None]).softmax(1), 8)
    assert ids.tolist() == law.ids.tolist()
    torch.testing.assert_close(torch.from_numpy(probs), law.probs)
    fastest = (noise / law.probs).argmin(1, keepdim=True)
    assert winners.tolist() == law.ids.gather(1, fastest).flatten().tolist()


def test_what_is_next_to_impossible_is_impossible():
    logits = torch.tensor([0.0, -86.0, -88.0, -300.0]).view(1, 1, 4)
    drawing = draws(logits, [1.0], 4)
    drawing._draw_compiled(0, logits)
    assert drawing.law().ids.tolist() == [[0, 1, PAD_ID, PAD_ID]]
    assert drawing.law().sound(4).all()


def test_tokens_are_drawn_as_often_as_their_law_says():
    logits = torch.tensor([2.0, 0.0, 1.0, -3.0, 1.5]).expand(20_000, 1, 5).contiguous()
    drawing = draws(logits, [1.0] * 20_000, 3)
    tokens = drawing._draw_compiled(0, logits).flatten()
    law = drawing.law().rows(torch.tensor([0]))
    assert law.ids.tolist() == [[0, 2, 4]]
    shares = torch.bincount(tokens, minlength=5)[law.ids[0]] / 20_000
    torch.testing.assert_close(shares, law.probs[0], atol=0.02, rtol=0)


def test_impossible_tokens_are_in_no_law():
    logits = torch.full((2, 2, 40), -torch.inf)
    logits[..., 17], logits[0, :, 31] = 4.0, 3.0
    tokens, law = assert_same_draws(logits, [1.0, 1.0], 8)
    assert law.ids[:, 2:].unique().tolist() == [PAD_ID] == [law_kernels._PAD_ID]
    assert set(tokens[1].tolist()) == {17}


@pytest.mark.parametrize("num_kept", [1, 4, 9])
def test_of_equal_tokens_the_first_are_kept(num_kept):
    logits = torch.tensor([0.0, 1.0, -0.0, 1.0, 1.0, -2.0, 0.0, 1.0, 1.0]).view(1, 1, 9)
    drawing = draws(logits, [1.0], num_kept)
    drawing._draw_compiled(0, logits)
    order = sorted(range(9), key=lambda token: (-logits[0, 0, token], token))
    kept = drawing.law().ids[0].tolist()
    if num_kept == 4:
        assert kept == sorted(order[:4])
    assert len(kept) == num_kept


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_has_no_law_is_left_to_torch(broken):
    logits = torch.zeros(3, 1, 20)
    logits[1, 0, 4] = broken
    drawing = draws(logits, [1.0] * 3, 8)
    assert drawing._draw_compiled(0, logits) is None
    assert drawing.laws == []
    drawing.draw(0, logits)
    assert len(drawing.laws) == 1


def test_slots_come_one_by_one_or_together():
    logits = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(1))
    together, single = (draws(logits, [1.0, 0.0, 0.7, 1.0], 16) for _ in range(2))
    expected = together.draw(0, logits)
    found = [single.draw(slot, logits[:, slot : slot + 1]) for slot in range(3)]
    assert torch.equal(torch.cat(found, dim=1), expected)
    for mine, theirs in zip(law_parts(single.law()), law_parts(together.law()), strict=True):
        assert torch.equal(mine, theirs)


def law_parts(law: DraftLaw):
    return law.ids, law.probs


def test_one_compilation_serves_every_shape():
    """Another would be made in the middle of a round."""
    for shape in ((1, 1, 1), (3, 2, 40), (1, 3, 7)):
        logits = torch.randn(shape)
        draws(logits, [1.0] * shape[0], 5).draw(0, logits)
        other = torch.randn(shape[1], shape[0], shape[2]).transpose(0, 1)
        draws(other, [1.0] * shape[0], 1).draw(0, other)
    assert len(law_kernels.race_of_likeliest.signatures) == 1


@pytest.mark.slow
def test_orders_are_those_of_the_numbers():
    x = np.array([-np.inf, -1e30, -2, -1e-30, 0, 1e-30, 2, 1e30, np.inf], np.float32)
    orders = np.empty(len(x), np.int64)
    assert ranks.orders_of(x, orders)
    assert (np.diff(orders) > 0).all()
    assert orders.min() >= 0
    assert orders.max() < 2**32


@pytest.mark.parametrize("num_tokens", [1, 7, 300, 4096])
def test_the_likeliest_alone_are_those_of_a_sort(num_tokens):
    generator = torch.Generator().manual_seed(num_tokens)
    logits = torch.randn(2, 3, num_tokens, generator=generator)
    logits[0, 1] = logits[0, 1].round()  # many are equal
    logits[1, 2, ::3] = -torch.inf
    for count in {1, min(5, num_tokens), num_tokens}:
        kept, ids = likeliest(logits, count)
        assert ids.shape == kept.shape == (2, 3, count)
        assert torch.equal(kept, logits.gather(-1, ids))
        assert torch.equal(ids, ids.sort(dim=-1).values)
        assert (ids.diff(dim=-1) > 0).all()
        largest = logits.topk(count, dim=-1).values
        assert torch.equal(kept.sort(dim=-1, descending=True).values, largest)


def test_a_row_with_what_is_no_number_has_likeliest_tokens_too():
    logits = torch.arange(12.0).view(2, 6)
    logits[1, 2] = torch.nan
    kept, ids = likeliest(logits, 3)
    assert ids[0].tolist() == [3, 4, 5]
    assert torch.equal(kept[1].nan_to_num(99), logits[1].gather(0, ids[1]).nan_to_num(99))
