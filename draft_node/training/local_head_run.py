"""One training run of a local head, from command line to exported folder."""

import argparse
import logging
from dataclasses import replace

import torch

from draft_node.training import text_source
from draft_node.training.batches import BatchSource
from draft_node.training.device import is_cpu
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.given_drafter import refuse_unless_dflash
from draft_node.training.local_head_export import HeadRecord, write_head
from draft_node.training.local_head_fusion import choose_weights
from draft_node.training.local_head_model import LocalHeadModel, unigram_counts
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.run_folder import claim, load_target
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.text_source import TextConfig, TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads, refuse_numbers
from specserve.drafters.spec import LocalHeadSpec
from specserve.errors import InvalidField
from specserve.processes.process import keep_freed_memory

log = logging.getLogger(__name__)

EXIT_STOPPED = 130
ROW = 256  # tokens
_MAX_LOGITS = 1 << 25  # at once
# On the decoder's rates: over 100 steps of 2,048 tokens 1 gave 6.6 nats a token of code, 4 gave 5.3
# and 8 gave 5.2.
_RATE = 5.0


def train(arguments: argparse.Namespace, command: str) -> int:
    """0 when the head is exported, 130 when a signal came first. `command` gives this run."""
    console = start_logging()
    if is_cpu(arguments.device):
        keep_freed_memory()
    texts = TextConfig.of(arguments)
    if arguments.window < 2:
        raise InvalidField("--window", "a block of one token leaves nothing to a local head")
    with num_threads(arguments.threads):
        target = load_target(arguments)
        spec = new_spec(arguments, target)
        if arguments.fuse_with is not None:
            refuse_unless_dflash(arguments.fuse_with, target, "--fuse-with")
        with claim(arguments) as folder:
            source = text_source.gather(target, texts)
            model = LocalHeadModel(spec, target, arguments.window)
            batches = BatchSource(
                source.training, arguments.seed, turns=source.turns, starts=source.starts
            )
            config = trainer_config(arguments, target)
            trainer = Trainer(model, batches, source.held_out, folder, config)
            schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, warmup_s=10)
            if not run_until_stopped(trainer, schedule, console):
                log.info("stopped; the same command resumes")
                return EXIT_STOPPED
            _export(arguments, command, model, source, trainer)
            if arguments.fuse_with is not None:
                _fuse(arguments, command, model, source, trainer)
    return 0


def new_spec(arguments: argparse.Namespace, target: FrozenTarget) -> LocalHeadSpec:
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


def trainer_config(arguments: argparse.Namespace, target: FrozenTarget) -> TrainerConfig:
    """Rows of one length: a window is all that is ever seen of them."""
    return TrainerConfig(
        tokens_per_step=arguments.tokens_per_step,
        micro_tokens=max(ROW, _MAX_LOGITS // target.spec.vocab_size),
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
            # A Markov head is two tables; Muon, which cannot do without a matrix, gets one of them.
            tables=("low_rank_lm_head",) if arguments.head == "gru" else ("embedding_weight",),
        ),
    )


def _export(
    arguments: argparse.Namespace,
    command: str,
    model: LocalHeadModel,
    source: TextSource,
    trainer: Trainer,
) -> None:
    """Measure the weights as they will be stored, then write the folder."""
    weights = {name: w.to(torch.bfloat16) for name, w in model.state_dict().items()}
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    limit = trainer.config.evaluate_tokens
    figures = {d: model.slot_losses(s[:limit]).tolist() for d, s in source.held_out.items()}
    progress = trainer.progress
    nats = (slot for slots in figures.values() for slot in slots)
    refuse_numbers("a figure of the stored weights", nats, progress.step)
    record = HeadRecord(
        command=command,
        target=arguments.target.name,
        steps=progress.step,
        tokens=progress.tokens,
        active_minutes=progress.active_s / 60,
        fused_with=None if arguments.fuse_with is None else arguments.fuse_with.name,
    )
    counts = unigram_counts(source.training, source.turns, model.spec.vocab_size)
    write_head(weights, counts, model.spec, record, figures, arguments.out)
    log.info("exported step %d to %s", progress.step, arguments.out)


def _fuse(
    arguments: argparse.Namespace,
    command: str,
    model: LocalHeadModel,
    source: TextSource,
    trainer: Trainer,
) -> None:
    """Choose alpha and beta with the DFlash that the head is for, and store them."""
    chosen = choose_weights(
        arguments.target, arguments.fuse_with, arguments.out, source.held_out,
        device=torch.device(arguments.device), seed=arguments.seed,
    )  # fmt: skip
    log.info(
        "accept length %.3f without the head, %.3f with alpha %g, beta %g",
        chosen.accept_len_without, chosen.accept_len, chosen.alpha, chosen.beta,
    )  # fmt: skip
    model.spec = replace(model.spec, alpha=chosen.alpha, beta=chosen.beta)
    _export(arguments, command, model, source, trainer)
