"""One training run of a local head, from command line to exported folder."""

import argparse
import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from draft_node.training import run
from draft_node.training.frozen_target import FrozenTarget, TargetFiles
from draft_node.training.given_drafter import refuse_unless_dflash
from draft_node.training.local_head_export import HeadRecord, write_head
from draft_node.training.local_head_fusion import choose_weights
from draft_node.training.local_head_model import LocalHeadModel, unigram_counts
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.provenance import RunRecord
from draft_node.training.text_source import TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, refuse_numbers
from specserve.drafters.spec import LocalHeadSpec
from specserve.errors import InvalidField

log = logging.getLogger(__name__)

ROW = 256  # tokens
_MAX_LOGITS = 1 << 25  # at once
# On the decoder's rates: over 100 steps of 2,048 tokens 1 gave 6.6 nats a token of code, 4 gave 5.3
# and 8 gave 5.2.
_RATE = 5.0


def train(arguments: argparse.Namespace, command: str) -> int:
    """As `run.train`, of a local head."""
    return run.train(arguments, command, LocalHeadJob)


def new_spec(arguments: argparse.Namespace, target: TargetFiles) -> LocalHeadSpec:
    """The head that the flags describe."""
    recurrent = arguments.head == "gru"
    if arguments.through_target_head and not recurrent:
        raise InvalidField("--through-target-head", "only a gru head can do with the target's")
    return LocalHeadSpec(
        vocab_size=target.spec.vocab_size,
        embed_dim=target.spec.hidden_size if recurrent else 0,
        hidden_dim=arguments.width if recurrent else 0,
        rank=arguments.rank,
        silu=recurrent,
        through_target_head=arguments.through_target_head,
    )


class LocalHeadJob:
    """`Job` of a head that is added to a DFlash."""

    warmup_s = 10.0
    feature_layers = ()

    def __init__(self, arguments: argparse.Namespace, target: TargetFiles) -> None:
        if arguments.window < 2:
            raise InvalidField("--window", "a block of one token leaves nothing to a local head")
        self._arguments = arguments
        self._spec = new_spec(arguments, target)
        if arguments.fuse_with is not None:
            refuse_unless_dflash(arguments.fuse_with, target, "--fuse-with")

    def model(self, target: FrozenTarget, source: TextSource, folder: Path) -> LocalHeadModel:
        return LocalHeadModel(self._spec, target, self._arguments.window)

    def initial(self, source: TextSource) -> dict[str, Tensor] | None:
        return None

    def config(self) -> TrainerConfig:
        """Rows of one length: a window is all that is ever seen of them."""
        arguments, is_recurrent = self._arguments, self._arguments.head == "gru"
        return TrainerConfig(
            tokens_per_step=arguments.tokens_per_step,
            micro_tokens=max(ROW, _MAX_LOGITS // self._spec.vocab_size),
            length=ROW,
            long_lengths=(),
            device=arguments.device,
            compile=False,  # recurrent kernels are as they are
            checkpoint_every_s=60.0,
            evaluate_every_s=120.0,
            seed=arguments.seed,
            optimizer=OptimizerConfig(
                muon_lr=_RATE * MUON_LR * arguments.rate,
                adam_lr=_RATE * ADAM_LR * arguments.rate,
                # A Markov head is two tables; Muon, which cannot do without a matrix, gets one.
                tables=("low_rank_lm_head",) if is_recurrent else ("embedding_weight",),
            ),
        )

    def export(self, trainer: Trainer, source: TextSource, command: str) -> None:
        model = trainer.model
        assert isinstance(model, LocalHeadModel)
        self._write(model, trainer, source, command)
        if self._arguments.fuse_with is not None:
            self._fuse(model, source)
            self._write(model, trainer, source, command)

    def _write(
        self, model: LocalHeadModel, trainer: Trainer, source: TextSource, command: str
    ) -> None:
        arguments, progress = self._arguments, trainer.progress
        weights = {name: w.to(torch.bfloat16) for name, w in model.state_dict().items()}
        model.load_state_dict({name: w.float() for name, w in weights.items()})
        limit = trainer.config.evaluate_tokens
        figures = {d: model.slot_losses(s[:limit]).tolist() for d, s in source.held_out.items()}
        nats = (slot for slots in figures.values() for slot in slots)
        refuse_numbers("a figure of the stored weights", nats, progress.step)
        record = HeadRecord(
            **vars(RunRecord.of(arguments, progress, command, epochs=trainer.epochs)),
            fused_with=None if arguments.fuse_with is None else arguments.fuse_with.name,
        )
        counts = unigram_counts(source.training, source.turns, model.spec.vocab_size)
        write_head(weights, counts, model.spec, record, figures, arguments.out)

    def _fuse(self, model: LocalHeadModel, source: TextSource) -> None:
        """Choose alpha and beta with the DFlash that the head is for, whose export there is."""
        arguments = self._arguments
        chosen = choose_weights(
            arguments.target, arguments.fuse_with, arguments.out, source.held_out,
            device=torch.device(arguments.device), seed=arguments.seed,
        )  # fmt: skip
        log.info(
            "accept length %.3f without the head, %.3f with alpha %g, beta %g",
            chosen.accept_len_without, chosen.accept_len, chosen.alpha, chosen.beta,
        )  # fmt: skip
        model.spec = replace(model.spec, alpha=chosen.alpha, beta=chosen.beta)
