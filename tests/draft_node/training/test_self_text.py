import numpy as np
import pytest
import torch

from draft_node.training import self_text
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.self_text import Pool, SelfTextConfig, StepwiseAttention, continue_rows
from tests.draft_node.training.drafters import patterned_stream, random_tokens, write_target

SMALL = SelfTextConfig(rows=3, length=20, shortest_prompt=2, longest_prompt=8, seed=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def test_steps_compute_what_one_forward_does(target):
    tokens = random_tokens(2, 12)
    attention, found = StepwiseAttention(target, 2, 12), []
    for start, end in [(0, 5), *((n, n + 1) for n in range(5, 12))]:
        positions = torch.arange(start, end).repeat(2)
        hidden, _ = target.model.forward(tokens[:, start:end].flatten(), positions, attention)
        attention.length = end
        found.append(hidden.view(2, end - start, -1))
    _, expected = target.read(tokens, (0,))
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-5)


def test_prompts_are_kept_whatever_their_lengths(target):
    prompts, lengths = random_tokens(3, 20), torch.tensor([2, 7, 20])
    written = continue_rows(target, prompts, lengths, torch.Generator().manual_seed(0))
    for row, length in enumerate(lengths):
        assert torch.equal(written[row, :length], prompts[row, :length])
    assert not torch.equal(written[0], prompts[0])


def test_tokens_follow_the_targets_distribution(target):
    prompt, rows = random_tokens(1, 4), 4000
    written = continue_rows(
        target,
        torch.cat([prompt, prompt[:, :1]], dim=1).repeat(rows, 1),
        torch.full((rows,), 4),
        torch.Generator().manual_seed(0),
    )
    _, hidden = target.read(prompt, (0,))
    probs = (hidden[0, -1] @ target.lm_head.T).softmax(-1)
    counts = torch.bincount(written[:, 4], minlength=len(probs))
    likely = probs > 0.005
    sigmas = (counts - rows * probs) / (rows * probs * (1 - probs)).sqrt()
    assert int(likely.sum()) > 5
    assert float(sigmas[likely].abs().max()) < 4.5


def test_a_pool_is_written_once_and_goes_on_where_it_stopped(target, tmp_path, monkeypatch):
    stream = patterned_stream(500)
    whole = Pool(target, tmp_path / "a", SMALL).stream("code", stream, 150)
    assert whole.dtype == stream.dtype
    assert len(whole) == 180
    pool = Pool(target, tmp_path / "b", SMALL)
    pool.stream("code", stream, 60)
    again = Pool(target, tmp_path / "b", SMALL).stream("code", stream, 150)
    assert np.array_equal(again, whole)
    parts = np.split(whole, 3)
    assert not np.array_equal(parts[0], parts[1])

    def refuse(*_: object) -> None:
        raise AssertionError("written again")

    monkeypatch.setattr(self_text, "write_part", refuse)
    assert np.array_equal(Pool(target, tmp_path / "a", SMALL).stream("code", stream, 150), whole)


def test_text_belongs_to_the_weights_that_wrote_it(target, tmp_path):
    other = FrozenTarget(write_target(tmp_path / "other", hidden_size=64))
    folders = {Pool(t, tmp_path, SMALL).folder for t in (target, other)}
    assert len(folders) == 2


def test_who_wants_little_gets_little(target, tmp_path):
    """Rows of one length, as many as are wanted; a pool for more has parts of its own."""
    prompts = np.arange(8, 200, dtype=np.uint16)
    for most, num_rows in ((1, 1), (20, 1), (21, 2), (1000, 3)):
        pool = Pool(target, tmp_path, SMALL, most=most)
        assert len(pool.stream("some", prompts, min(most, 60))) == num_rows * 20
