"""Serial heads against their formulas, written out one block and one slot at a time."""

import pytest
import torch
from safetensors.torch import load_file

from specserve.drafters.protocol import ContextUpdate, DraftBatch
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import DSPARK, change_tensors, make_drafter

RANK = 6


def vanilla(w, e, h, state):
    return e, state


def gated(w, e, h, state):
    gate = w["markov_head.gate_proj.weight"] @ torch.cat([h, e]) + w["markov_head.gate_proj.bias"]
    return gate.sigmoid() * e, state


def rnn(w, e, h, state):
    z = torch.cat([state, e, h])
    g, c, o = (w["markov_head.joint_proj.weight"] @ z + w["markov_head.joint_proj.bias"]).chunk(3)
    return o.tanh(), g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh()


@pytest.mark.parametrize("step", [vanilla, gated, rnn])
def test_biased_logits_follow_the_formula_along_a_path(step, target, tmp_path):
    folder = tmp_path / "draft"
    drafter = make_drafter(folder, DSPARK, target, markov_head_type=step.__name__)
    w = load_file(folder / "model.safetensors")
    features = torch.randn(12, 32)
    drafter.extend(ContextUpdate([0], [0], [12], torch.zeros(12, dtype=torch.int64), features))
    batch, path = DraftBatch([0], torch.tensor([17])), torch.tensor([3, 3, 50, 9])
    recorder = Recorder(path)
    seen = {}
    head = drafter.confidence_head

    class Watched:
        def __call__(self, hidden, previous_ids):
            seen["hidden"] = hidden[0]
            return head(hidden, previous_ids)

    drafter.confidence_head = Watched()
    confidences = drafter.draft(batch, recorder).confidences[0]

    state, base = torch.zeros(RANK), drafter.backbone.logits(seen["hidden"])
    for slot, previous in enumerate([17, 3, 3, 50]):
        e, h = w["markov_head.markov_w1.weight"][previous], seen["hidden"][slot]
        out, state = step(w, e, h, state)
        expected = base[slot] + w["markov_head.markov_w2.weight"] @ out
        torch.testing.assert_close(recorder.logits[slot], expected, atol=1e-5, rtol=1e-5)
        logit = w["confidence_head.proj.weight"][0] @ torch.cat([h, e])
        expected = (logit + w["confidence_head.proj.bias"][0]).sigmoid()
        torch.testing.assert_close(confidences[slot], expected, atol=1e-5, rtol=1e-5)


def test_a_missing_confidence_bias_is_zero(target, tmp_path):
    folder = tmp_path / "draft"
    make_drafter(folder, DSPARK, target)
    from specserve.drafters.load import load_drafter
    from tests.specserve.drafters.checkpoints import options

    change_tensors(folder, **{"confidence_head.proj.bias": torch.zeros(1)})
    zero = load_drafter(folder, target, options())
    change_tensors(folder, **{"confidence_head.proj.bias": None})
    missing = load_drafter(folder, target, options())
    hidden, ids = torch.randn(1, 4, 32), torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(missing.confidence_head(hidden, ids), zero.confidence_head(hidden, ids))
