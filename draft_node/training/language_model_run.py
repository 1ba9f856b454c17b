"""One training run of a standalone language model, from command line to exported folder."""

import argparse
import logging

from torch import Tensor

from draft_node.training import draft_vocabulary, text_source
from draft_node.training.batches import BatchSource
from draft_node.training.block_export import as_read, stored
from draft_node.training.device import is_cpu
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.language_model_distilled import DistilledDecoder, micro_tokens
from draft_node.training.language_model_export import ModelRecord, write_language_model
from draft_node.training.language_model_start import StartingPoint, starting_point
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.pruning import cut
from draft_node.training.run_folder import claim, is_begun, load_target
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.text_source import Streams, TextConfig, TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads, refuse_numbers
from specserve.processes.process import keep_freed_memory

log = logging.getLogger(__name__)

EXIT_STOPPED = 130
LONG_LENGTHS = (512, 1024)


def train(arguments: argparse.Namespace, command: str) -> int:
    """0 when the model is exported, 130 when a signal came first. `command` gives this run."""
    console = start_logging()
    if is_cpu(arguments.device):
        keep_freed_memory()
    texts = TextConfig.of(arguments)
    with num_threads(arguments.threads):
        target = load_target(arguments)
        start = starting_point(arguments, target)
        with claim(arguments) as folder:
            source = text_source.gather(target, texts)
            model = _model(start, target, arguments.distill, source)
            batches = BatchSource(
                source.training, arguments.seed, turns=source.turns, starts=source.starts
            )
            config = trainer_config(arguments, target)
            initial = None
            if not is_begun(folder):
                initial = initial_weights(arguments, start, model, source.training)
            trainer = Trainer(model, batches, source.held_out, folder, config, initial=initial)
            schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, warmup_s=20)
            if not run_until_stopped(trainer, schedule, console):
                log.info("stopped; the same command resumes")
                return EXIT_STOPPED
            _export(arguments, command, model, source.held_out, trainer)
    return 0


def _model(
    start: StartingPoint, target: FrozenTarget, share: float, source: TextSource
) -> DistilledDecoder:
    """Without weights; the tokens that it drafts are those of --init, or chosen by the text."""
    draft_ids, size = start.draft_ids, start.draft_vocab_size
    if draft_ids is None and size is not None:
        texts = (source.training, source.held_out)
        draft_ids = draft_vocabulary.chosen(*texts, size, target.spec.vocab_size)
    owns = start.owns_embeddings
    return DistilledDecoder(start.shape, target, share, owns_embeddings=owns, draft_ids=draft_ids)


def initial_weights(
    arguments: argparse.Namespace,
    start: StartingPoint,
    model: DistilledDecoder,
    training: Streams,
) -> dict[str, Tensor] | None:
    """Those of --init, or what --cut makes; None is a random start."""
    if start.weights is not None:
        return start.weights
    if arguments.cut is None:
        return None
    return cut(
        model.target,
        arguments.cut,
        start.shape.intermediate_size,
        text_source.sample_of(training, start.shape.max_position_embeddings),
        with_embeddings=start.owns_embeddings,
    )


def trainer_config(arguments: argparse.Namespace, target: FrozenTarget) -> TrainerConfig:
    """Mostly short rows, as many at once as distributions over the vocabulary fit in memory."""
    limit = target.spec.max_position_embeddings
    return TrainerConfig(
        tokens_per_step=arguments.tokens_per_step,
        micro_tokens=micro_tokens(target.spec.vocab_size, arguments.tokens_per_step),
        length=min(256, limit),
        long_lengths=tuple(length for length in LONG_LENGTHS if length <= limit),
        device=arguments.device,
        compile=arguments.compile,
        checkpoint_every_s=60.0,
        evaluate_every_s=180.0,
        evaluate_tokens=8192,
        seed=arguments.seed,
        optimizer=OptimizerConfig(
            muon_lr=MUON_LR * arguments.rate, adam_lr=ADAM_LR * arguments.rate
        ),
    )


def _export(
    arguments: argparse.Namespace,
    command: str,
    model: DistilledDecoder,
    held_out: Streams,
    trainer: Trainer,
) -> None:
    """Measure the weights as they will be stored, then write the folder."""
    tensors = stored(model.state_dict(), arguments.store_bits)
    model.load_state_dict(as_read(tensors))
    limit = trainer.config.evaluate_tokens
    with trainer.autocast():
        figures = model.evaluate({domain: stream[:limit] for domain, stream in held_out.items()})
    progress = trainer.progress
    refuse_numbers("a figure of the stored weights", figures.values(), progress.step)
    record = ModelRecord(
        command=command,
        target=arguments.target.name,
        steps=progress.step,
        tokens=progress.tokens,
        active_minutes=progress.active_s / 60,
    )
    write_language_model(model, tensors, record, figures, arguments.out)
    log.info("exported step %d to %s", progress.step, arguments.out)
