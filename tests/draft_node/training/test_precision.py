"""Every kind trains where products are in bfloat16, as on GPUs: forward, backward and update."""

import pytest
import torch

from draft_node.training import losses
from draft_node.training.batches import BatchSource
from draft_node.training.block_model import MarkovHead
from draft_node.training.decoder import DecoderConfig
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.language_model_distilled import DistilledDecoder
from draft_node.training.local_head_model import LocalHeadModel
from draft_node.training.schedule import Schedule
from draft_node.training.trainable import Trainable
from draft_node.training.trainer import Trainer, TrainerConfig
from specserve.drafters.spec import LocalHeadSpec, MarkovKind, MarkovSpec
from tests.draft_node.training.drafters import (
    VOCAB,
    make_objective,
    patterned_stream,
    write_target,
)

BLOCKS = {
    "vanilla": ("dspark",),
    "gated": ("dspark", "--markov", "gated"),
    "rnn": ("dspark", "--markov", "rnn"),
    "rnn, hidden confidence": ("dspark", "--markov", "rnn", "--confidence", "hidden"),
    "no Markov head": ("dspark", "--markov", "none", "--confidence", "hidden"),
    "no confidence": ("dspark", "--confidence", "none"),
    "dflash": ("dflash",),
    "eagle3": ("eagle3",),
}
TERMS = {"dspark": losses.DSPARK, "dflash": losses.DFLASH, "eagle3": losses.EAGLE3}
HEADS = {
    "gru": LocalHeadSpec(VOCAB, 32, 12, 5, True, False),
    "gru through the target's head": LocalHeadSpec(VOCAB, 32, 12, 5, True, True),
    "local markov": LocalHeadSpec(VOCAB, 0, 0, 5, False, False),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def train_a_step(model: Trainable, folder) -> None:
    """One update in bfloat16, whether or not that is fast here; weights are random everywhere."""
    config = TrainerConfig(
        tokens_per_step=128, micro_tokens=64, length=32, long_lengths=(), compile=False,
        evaluate_tokens=200, bfloat16=True,
    )  # fmt: skip
    streams = {"text": patterned_stream(400)}
    start = {name: torch.randn_like(w) * 0.1 for name, w in model.state_dict().items()}
    batches = BatchSource(streams, 0, window=32)
    trainer = Trainer(model, batches, streams, folder, config, initial=start)
    assert trainer.run(Schedule(1, 0.5, in_steps=True), lambda *_: None)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, start[name]), name
        assert parameter.dtype == torch.float32, name


@pytest.mark.slow
@pytest.mark.parametrize("max_gap", [0, 4])
@pytest.mark.parametrize("kind", BLOCKS.values(), ids=BLOCKS)
def test_block_drafters_train_in_bfloat16(kind, max_gap, target, tmp_path):
    terms = TERMS[kind[0]]
    train_a_step(make_objective(target, *kind, terms=terms, max_gap=max_gap), tmp_path)


@pytest.mark.parametrize("spec", HEADS.values(), ids=HEADS)
def test_local_heads_train_in_bfloat16(spec, target, tmp_path):
    train_a_step(LocalHeadModel(spec, target, window=6), tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_language_models_train_in_bfloat16(share, target, tmp_path):
    config = DecoderConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    train_a_step(DistilledDecoder(config, target, share), tmp_path)


def test_a_recurrent_state_is_not_rounded_to_bfloat16():
    torch.manual_seed(0)
    head = MarkovHead(MarkovSpec(MarkovKind.RNN, 6), 8, vocab_size=20, draft_vocab_size=20)
    hidden, embedded, states = torch.randn(2, 7, 8), torch.randn(2, 7, 6), []
    head.joint_proj.register_forward_pre_hook(lambda _, given: states.append(given[0][:, :6]))
    exact = head._recurrent(hidden, embedded)
    states.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = head._recurrent(hidden, embedded)
    assert found.dtype == torch.float32
    assert all(not torch.equal(state, state.bfloat16().float()) for state in states[1:])
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0)
