import math

import pytest
import torch

from draft_node.training import losses
from draft_node.training.losses import LossWeights


def test_equal_distributions_are_always_accepted():
    logits = torch.randn(3, 4, 9)
    l1 = losses.l1_distance(logits.log_softmax(-1), logits.softmax(-1))
    torch.testing.assert_close(losses.acceptance(l1), torch.ones(3, 4))
    tokens = losses.expected_tokens(l1, torch.ones(3, 4, dtype=torch.bool))
    torch.testing.assert_close(tokens, torch.full((3,), 5.0))


def test_expected_tokens_stop_at_the_first_slot_without_a_label():
    l1 = torch.tensor([[0.0, 1.0, 1.0]])
    every = torch.tensor([[True, True, True]])
    assert losses.expected_tokens(l1, every).item() == 1 + 1 + 0.5 + 0.25
    assert losses.expected_tokens(l1, torch.tensor([[True, True, False]])).item() == 2.5


def test_acceptance_is_what_rejection_sampling_accepts():
    draft, target = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = torch.minimum(draft, target).sum()
    l1 = losses.l1_distance(draft.log(), target)
    torch.testing.assert_close(losses.acceptance(l1), expected)


def test_weights_decay_by_slot_and_vanish_without_a_label():
    weights = losses.slot_weights(torch.tensor([[True, True, False]]))
    torch.testing.assert_close(weights, torch.tensor([[1.0, math.exp(-0.25), 0.0]]))


def test_confidences_are_trained_towards_the_acceptance_and_do_not_move_the_distribution():
    logits = torch.randn(1, 1, 9, requires_grad=True)
    confidence_logits = torch.zeros(1, 1, requires_grad=True)
    target_probs = torch.randn(1, 1, 9).softmax(-1)
    labels = torch.zeros(1, 1, dtype=torch.int64)
    slots = losses.slot_losses(logits, labels, target_probs, confidence_logits)
    losses.weighted_sum(slots, torch.ones(1, 1), LossWeights(0, 0, 1)).backward()
    assert logits.grad is None or not logits.grad.any()
    accepted = losses.acceptance(slots.l1).detach()
    torch.testing.assert_close(confidence_logits.grad, 0.5 - accepted)


def test_cross_entropy_needs_no_target():
    logits = torch.zeros(2, 3, 8)
    slots = losses.slot_losses(logits, torch.zeros(2, 3, dtype=torch.int64), None, None)
    assert slots.l1 is None
    total = losses.weighted_sum(slots, torch.ones(2, 3), losses.DFLASH)
    assert total.item() == pytest.approx(6 * math.log(8), rel=1e-5)


def test_soft_cross_entropy_is_least_at_the_targets_distribution():
    target_logits = torch.randn(3, 4, 9)
    distributions, logits = target_logits.softmax(-1), torch.randn(3, 4, 9, requires_grad=True)
    nats = losses.soft_cross_entropy(logits, distributions)
    entropy = losses.soft_cross_entropy(target_logits, distributions)
    assert nats.shape == (3, 4)
    assert (nats > entropy).all()
    nats.sum().backward()
    torch.testing.assert_close(logits.grad, (logits.softmax(-1) - distributions).detach())


def test_eagle3_steps_weigh_four_fifths_of_the_step_before():
    weights = losses.slot_weights(torch.ones(1, 4, dtype=torch.bool), losses.EAGLE3.decay)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.8, 0.64, 0.512]]))
