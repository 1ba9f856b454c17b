"""One training run of a DSpark, DFlash or EAGLE-3, from command line to exported folder."""

import argparse
import json
import logging
import shlex
from pathlib import Path

import torch
from torch import Tensor

from draft_node.drafters.spec import Eagle3Spec
from draft_node.training import checkpoint, losses, memory, text_source
from draft_node.training.batches import BatchSource
from draft_node.training.block_export import TrainingRecord, rounded, write_drafter
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import (
    WINDOW,
    BlockObjective,
    Figures,
    ObjectiveConfig,
)
from draft_node.training.block_start import starting_point
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.optimizer import OptimizerConfig
from draft_node.training.options import budget_words, work_folder
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.self_text import weights_digest
from draft_node.training.text_source import Streams, TextConfig, TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads
from specserve.errors import InvalidField, Unsupported

log = logging.getLogger(__name__)

EXIT_STOPPED = 130
# AdamW throughout. Expected tokens a round after 60 steps of 2,048 tokens from the target's layers,
# code and prose: AdamW at 2e-3 1.46 and 1.48, at 5e-3 1.51 and 1.53; Muon at 3e-3 1.41 and 1.43,
# and its products took an eighth of a step. Longer runs want a little less.
PEAK_LR = 4e-3
MEASURED_GAPS = (0, 4, 8)
LONG_LENGTHS = (512, 1024)
SETTINGS = "settings.json"
_TERMS = {"dspark": losses.DSPARK, "dflash": losses.DFLASH, "eagle3": losses.EAGLE3}
# What a resumed run must have in common with its checkpoint.
_FIXED = ("kind", "layers", "gamma", "feature_layers", "mask_token_id", "markov", "rank",
          "confidence", "max_gap", "anchors", "tokens_per_step", "text", "self_text")  # fmt: skip


def train(arguments: argparse.Namespace) -> int:
    """The command; 0 when the drafter is exported, 130 when a signal came first."""
    console = start_logging()
    if arguments.device == "cpu":
        memory.keep_freed_memory()
    with num_threads(arguments.threads):
        target = _target(arguments)
        spec, initial = starting_point(arguments, target)
        config = ObjectiveConfig(_TERMS[arguments.kind], arguments.anchors, arguments.max_gap)
        work = work_folder(arguments)
        folder = _run_folder(arguments, work, target)
        source = text_source.gather(
            target,
            TextConfig(
                work, arguments.text, arguments.self_text, arguments.self_tokens,
                seed=arguments.seed,
            ),
        )  # fmt: skip
        drafter = Eagle3Model(spec) if isinstance(spec, Eagle3Spec) else BlockModel(spec)
        objective = BlockObjective(drafter, target, config)
        trainer = _trainer(arguments, objective, source, folder, initial)
        schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, warmup_s=20)
        if not run_until_stopped(trainer, schedule, console):
            log.info("stopped; the same command resumes")
            return EXIT_STOPPED
        _export(arguments, objective, source, trainer)
    return 0


def _target(arguments: argparse.Namespace) -> FrozenTarget:
    try:
        torch.empty(0, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).partition("\n")[0]
        raise InvalidField("--device", f"{arguments.device}: {problem}") from error
    try:
        return FrozenTarget(arguments.target, arguments.device)
    except Unsupported as error:
        raise InvalidField("--target", str(error)) from error


def _run_folder(arguments: argparse.Namespace, work: Path, target: FrozenTarget) -> Path:
    """Where the run is kept, for one target and one set of flags. Refuses to resume another's."""
    folder = work / "runs" / f"{arguments.kind}-{arguments.out.name}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {name: _plain(getattr(arguments, name, None)) for name in _FIXED}
    settings |= {"target": weights_digest(target.folder), "init": _digest(arguments.init)}
    path, saved = folder / SETTINGS, folder / checkpoint.FILE_NAME
    if arguments.restart:
        saved.unlink(missing_ok=True)
    if saved.exists():
        begun = json.loads(path.read_text())
        for name, value in settings.items():
            if begun.get(name) != value:
                flag = f"--{name.replace('_', '-')}"
                problem = f"{folder} holds a run with another value; --restart forgets it"
                raise InvalidField(flag, problem)
    path.write_text(json.dumps(settings, indent=2) + "\n")
    return folder


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _digest(folder: Path | None) -> str | None:
    return None if folder is None else weights_digest(folder)


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
    batches = BatchSource(source.training, arguments.seed, turns=source.turns)
    return Trainer(objective, batches, source.held_out, folder, config, initial=initial)


def _export(
    arguments: argparse.Namespace, objective: BlockObjective, source: TextSource, trainer: Trainer
) -> None:
    """Measure the weights as they will be stored, then write the folder."""
    drafter, progress = objective.drafter, trainer.progress
    weights = rounded(drafter.state_dict())
    drafter.load_state_dict({name: weight.float() for name, weight in weights.items()})
    log.info("measuring the stored weights")
    with trainer.autocast():
        figures = measure(objective, source.held_out, trainer.config.evaluate_tokens * 4)
    record = TrainingRecord(
        command=_command(arguments),
        target=f"{arguments.target.name} ({weights_digest(arguments.target)[:12]})",
        steps=progress.step,
        tokens=progress.tokens,
        active_minutes=progress.active_s / 60,
        num_anchors=arguments.anchors,
        max_gap=arguments.max_gap,
    )
    write_drafter(weights, drafter.spec, record, figures, arguments.out)
    log.info("exported step %d to %s", progress.step, arguments.out)


def measure(
    objective: BlockObjective, held_out: Streams, num_tokens: int
) -> dict[str, dict[int, Figures]]:
    """Figures by domain and gap over the first num_tokens tokens of each stream."""
    return {
        domain: {gap: objective.measure(stream[:num_tokens], gap) for gap in MEASURED_GAPS}
        for domain, stream in held_out.items()
    }


def _command(arguments: argparse.Namespace) -> str:
    """The command line that gives this run, as far as it is not by default."""
    words = ["specserve", "train", arguments.kind, *budget_words(arguments)]
    for name in ("layers", "gamma", "markov", "rank", "confidence", "init"):
        if (value := getattr(arguments, name, None)) is not None:
            words += [f"--{name}", str(value)]
    if arguments.max_gap:
        words += ["--max-gap", str(arguments.max_gap)]
    if arguments.text is not None:
        words += ["--text", str(arguments.text)]
    words += ["--self-text", f"{arguments.self_text:g}", "--out", arguments.out.name]
    return shlex.join(words)
