"""One training run of any kind, from command line to exported folder.

What is asked for is checked before weights are read, the run's folder is claimed before text is
gathered, and everything that a kind does itself is in its `Job`. Over several processes the first
one alone gathers, says, saves and exports.
"""

import argparse
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from draft_node.training import text_source
from draft_node.training.batches import BatchSource
from draft_node.training.companions import companions_of
from draft_node.training.curves import write_curves
from draft_node.training.device import is_cpu
from draft_node.training.frozen_target import FrozenTarget, TargetFiles
from draft_node.training.keep_outputs import keep_outputs, refuse_other_text
from draft_node.training.provenance import commands_with
from draft_node.training.ranks import Ranks
from draft_node.training.run_folder import claim, is_begun, load_target, read_target
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.text_source import TextConfig, TextSource
from draft_node.training.trainable import Trainable
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads
from specserve.processes.process import keep_freed_memory
from specserve.settings.target_source import EMBEDDED_TARGET, TINY

log = logging.getLogger(__name__)

EXIT_STOPPED = 130


class Job(Protocol):
    """What one kind does in a run. Made of flags that are right; calls come in this order."""

    warmup_s: float
    feature_layers: tuple[int, ...]  # of the target, that are read

    def model(self, target: FrozenTarget, source: TextSource, folder: Path) -> Trainable:
        """What is trained, without weights; `folder` is the run's."""
        ...

    def initial(self, source: TextSource) -> dict[str, Tensor] | None:
        """The weights that a new run begins with; None: the model's own start."""
        ...

    def config(self) -> TrainerConfig:
        """How it is trained, for the process that trains alone."""
        ...

    def export(self, trainer: Trainer, source: TextSource, command: str) -> None:
        """Measure the weights as they will be stored, then write --out."""
        ...


def train(
    arguments: argparse.Namespace,
    command: str,
    job_of: Callable[[argparse.Namespace, TargetFiles], Job],
) -> int:
    """0 when --out is written, 130 when a signal came first. `command` gives this run.

    `job_of` raises InvalidField naming the flag that is wrong.
    """
    console = start_logging()
    log.info("%s for the target %s", arguments.kind, _name(arguments.target))
    if is_cpu(arguments.device):
        keep_freed_memory()
    texts = TextConfig.of(arguments)
    refuse_other_text(arguments)
    job = job_of(arguments, read_target(arguments))
    # The folder is claimed before the target is read: what will not do is found out at once.
    with (
        num_threads(_threads(arguments)),
        companions_of(arguments) as ranks,
        claim(arguments, ranks) as folder,
    ):
        target = load_target(arguments)
        source = _gathered(target, texts, ranks)
        keep_outputs(arguments, target, source, job.feature_layers, ranks)
        trainer = _trainer(arguments, job, target, source, folder, ranks)
        schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, job.warmup_s)
        is_done = run_until_stopped(trainer, schedule, console)
        ranks.disband()
        if not is_done:
            log.info("stopped; the same command resumes")
            return EXIT_STOPPED
        if ranks.is_first:
            job.export(trainer, source, command)
            write_curves(trainer.progress.history, arguments.out)
            log.info("exported step %d to %s", trainer.progress.step, arguments.out)
            log.info("next: %s", "\n      ".join(commands_with(arguments, str(arguments.out))))
    return 0


def _name(target: Path) -> str:
    """As --target names it: by default another model is trained for than `launch` serves."""
    return f"{TINY} (--target names another)" if target == EMBEDDED_TARGET else str(target)


def _threads(arguments: argparse.Namespace) -> int:
    """Of one process: they share the cores."""
    return max(1, arguments.threads // arguments.processes)


def _gathered(target: FrozenTarget, texts: TextConfig, ranks: Ranks) -> TextSource:
    """The others read what the first one has made."""
    if ranks.is_first:
        source = text_source.gather(target, texts)
        ranks.wait()
        return source
    ranks.wait()
    return text_source.gather(target, texts)


def _trainer(
    arguments: argparse.Namespace,
    job: Job,
    target: FrozenTarget,
    source: TextSource,
    folder: Path,
    ranks: Ranks,
) -> Trainer:
    model = job.model(target, source, folder)
    batches = BatchSource(source.training, arguments.seed, turns=source.turns, starts=source.starts)
    is_new = not is_begun(folder)
    if is_new and ranks.is_first:
        log.info("making the weights that training begins with")
    initial = job.initial(source) if is_new else None
    ranks.wait()  # or one of them would find a checkpoint that another has just begun
    config = replace(job.config(), ranks=ranks)
    return Trainer(model, batches, source.held_out, folder, config, initial=initial)
