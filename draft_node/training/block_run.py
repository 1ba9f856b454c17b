"""One training run of a DSpark, DFlash or EAGLE-3, from command line to exported folder."""

import argparse
import logging
from itertools import product
from pathlib import Path

from torch import Tensor

from draft_node.training import draft_vocabulary, losses, text_source
from draft_node.training.batches import BatchSource
from draft_node.training.block_export import TrainingRecord, as_read, stored, write_drafter
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import (
    WINDOW,
    BlockObjective,
    Figures,
    ObjectiveConfig,
)
from draft_node.training.block_start import starting_point
from draft_node.training.device import is_cpu
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.optimizer import OptimizerConfig
from draft_node.training.progress import each
from draft_node.training.run_folder import claim, load_target
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.self_text import weights_digest
from draft_node.training.text_source import Streams, TextConfig, TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads, refuse_numbers
from specserve.drafters.spec import BlockSpec, Eagle3Spec
from specserve.errors import InvalidField
from specserve.processes.process import keep_freed_memory

log = logging.getLogger(__name__)

EXIT_STOPPED = 130
# AdamW throughout. Expected tokens a round after 60 steps of 2,048 tokens from the target's layers,
# code and prose: AdamW at 2e-3 1.46 and 1.48, at 5e-3 1.51 and 1.53; Muon at 3e-3 1.41 and 1.43,
# and its products took an eighth of a step. Longer runs want a little less.
PEAK_LR = 4e-3
MEASURED_GAPS = (0, 4, 8)
LONG_LENGTHS = (512, 1024)
_TERMS = {"dspark": losses.DSPARK, "dflash": losses.DFLASH, "eagle3": losses.EAGLE3}


def train(arguments: argparse.Namespace, command: str) -> int:
    """0 when the drafter is exported, 130 when a signal came first. `command` gives this run."""
    console = start_logging()
    if is_cpu(arguments.device):
        keep_freed_memory()
    texts = TextConfig.of(arguments)
    with num_threads(arguments.threads):
        target = load_target(arguments)
        spec, initial = starting_point(arguments, target)
        refuse_crowded_rows(arguments, spec.gamma, target.spec.max_position_embeddings)
        config = ObjectiveConfig(_TERMS[arguments.kind], arguments.anchors, arguments.max_gap)
        with claim(arguments) as folder:
            source = text_source.gather(target, texts)
            drafter = Eagle3Model(spec) if isinstance(spec, Eagle3Spec) else BlockModel(spec)
            sample = text_source.sample_of(source.training, target.spec.max_position_embeddings)
            draft_ids = _drafted(spec, initial, source)
            objective = BlockObjective(drafter, target, config, sample, draft_ids)
            trainer = _trainer(arguments, objective, source, folder, initial)
            schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, warmup_s=20)
            if not run_until_stopped(trainer, schedule, console):
                log.info("stopped; the same command resumes")
                return EXIT_STOPPED
            _export(arguments, command, objective, source, trainer)
    return 0


def _drafted(
    spec: BlockSpec | Eagle3Spec, initial: dict[str, Tensor] | None, source: TextSource
) -> Tensor | None:
    """The tokens that are drafted, as --init has them or by the text; None for all of them."""
    given = None if initial is None else draft_vocabulary.from_tables(initial)
    if given is not None or not spec.reduces_vocab:
        return given
    return draft_vocabulary.chosen(
        source.training, source.held_out, spec.draft_vocab_size, spec.decoder.vocab_size
    )


def refuse_crowded_rows(arguments: argparse.Namespace, gamma: int, longest: int) -> None:
    """Raise InvalidField unless rows of up to `longest` tokens hold blocks, and all that are asked.

    A block begins at a token of its own, and ends in the row.
    """
    if gamma >= longest:
        raise InvalidField("--gamma", f"{gamma}: rows of this target have {longest} tokens")
    room = WINDOW - gamma
    if arguments.anchors > room:
        problem = f"at most {room} blocks of {gamma} begin in {WINDOW} tokens"
        raise InvalidField("--anchors", f"{arguments.anchors}: {problem}")


def _trainer(
    arguments: argparse.Namespace,
    objective: BlockObjective,
    source: TextSource,
    folder: Path,
    initial: dict[str, Tensor] | None,
) -> Trainer:
    limit = objective.drafter.spec.decoder.max_position_embeddings
    rate = arguments.rate or (1.0 if initial is None else 0.5)
    config = TrainerConfig(
        tokens_per_step=arguments.tokens_per_step,
        micro_tokens=arguments.tokens_per_step,
        length=min(WINDOW, limit),
        long_lengths=tuple(length for length in LONG_LENGTHS if length <= limit),
        device=arguments.device,
        compile=arguments.compile,
        checkpoint_every_s=60.0,
        evaluate_every_s=180.0,
        evaluate_tokens=4096,
        seed=arguments.seed,
        optimizer=OptimizerConfig(muon_lr=None, adam_lr=PEAK_LR * rate),
    )
    if initial is not None:
        initial = {f"drafter.{name}": weight for name, weight in initial.items()}
    batches = BatchSource(source.training, arguments.seed, turns=source.turns, starts=source.starts)
    return Trainer(objective, batches, source.held_out, folder, config, initial=initial)


def _export(
    arguments: argparse.Namespace,
    command: str,
    objective: BlockObjective,
    source: TextSource,
    trainer: Trainer,
) -> None:
    """Measure the weights as they will be stored, then write the folder."""
    drafter, progress = objective.drafter, trainer.progress
    tensors = stored(drafter.state_dict(), arguments.store_bits)
    drafter.load_state_dict(as_read(tensors))
    if (ids := objective.vocabulary.ids) is not None:
        tensors |= draft_vocabulary.tables(ids, drafter.spec.decoder.vocab_size)
    with trainer.autocast():
        figures = measure(objective, source.held_out, trainer.config.evaluate_tokens * 2)
    tokens = (found.tokens_per_round for by_gap in figures.values() for found in by_gap.values())
    refuse_numbers("a figure of the stored weights", tokens, progress.step)
    record = TrainingRecord(
        command=command,
        target=f"{arguments.target.name} ({weights_digest(arguments.target)[:12]})",
        steps=progress.step,
        tokens=progress.tokens,
        active_minutes=progress.active_s / 60,
        num_anchors=arguments.anchors,
        max_gap=arguments.max_gap,
    )
    write_drafter(tensors, drafter.spec, record, figures, arguments.out)
    log.info("exported step %d to %s", progress.step, arguments.out)


def measure(
    objective: BlockObjective, held_out: Streams, num_tokens: int
) -> dict[str, dict[int, Figures]]:
    """Figures by domain and gap over the first num_tokens tokens of each stream."""
    figures: dict[str, dict[int, Figures]] = {domain: {} for domain in held_out}
    pairs = list(product(held_out, MEASURED_GAPS))
    for domain, gap in each("measuring the stored weights", pairs):
        figures[domain][gap] = objective.measure(held_out[domain][:num_tokens], gap)
    return figures
