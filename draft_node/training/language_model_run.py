"""One training run of a standalone language model, from command line to exported folder."""

import argparse
import logging
from pathlib import Path

import torch
from torch import Tensor

from draft_node.training import text_source
from draft_node.training.batches import BatchSource
from draft_node.training.decoder import DecoderConfig
from draft_node.training.device import is_cpu
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.given_drafter import given_weights
from draft_node.training.language_model_distilled import DistilledDecoder, micro_tokens
from draft_node.training.language_model_export import ModelRecord, write_language_model
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.options import work_folder
from draft_node.training.pruning import cut
from draft_node.training.run_folder import claim, is_begun, load_target
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.text_source import Streams, TextConfig
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads, refuse_numbers
from specserve.errors import InvalidField
from specserve.processes.process import keep_freed_memory

log = logging.getLogger(__name__)

EXIT_STOPPED = 130
LONG_LENGTHS = (512, 1024)


def train(arguments: argparse.Namespace, command: str) -> int:
    """0 when the model is exported, 130 when a signal came first. `command` gives this run."""
    console = start_logging()
    if is_cpu(arguments.device):
        keep_freed_memory()
    with num_threads(arguments.threads):
        target = load_target(arguments)
        with claim(arguments) as folder:
            model = DistilledDecoder(new_config(arguments, target), target, arguments.distill)
            source = text_source.gather(
                target,
                TextConfig(
                    work_folder(arguments), arguments.text, arguments.self_text, seed=arguments.seed
                ),
            )
            batches = BatchSource(source.training, arguments.seed, turns=source.turns)
            config = trainer_config(arguments, target)
            initial = None
            if not is_begun(folder):
                initial = initial_weights(arguments, model, source.training)
            trainer = Trainer(model, batches, source.held_out, folder, config, initial=initial)
            schedule = Schedule.of_drafter(arguments.minutes, arguments.steps, warmup_s=20)
            if not run_until_stopped(trainer, schedule, console):
                log.info("stopped; the same command resumes")
                return EXIT_STOPPED
            _export(arguments, command, model, source.held_out, trainer)
    return 0


def new_config(arguments: argparse.Namespace, target: FrozenTarget) -> DecoderConfig:
    """The shape by the flags, with the target's vocabulary and positions.

    A model cut out of the target has the target's widths, norms and rotary frequencies.
    """
    spec, usual = target.spec, DecoderConfig()
    if arguments.cut is not None:
        arguments.layers, arguments.hidden = len(arguments.cut), spec.hidden_size
        arguments.heads, arguments.kv_heads = spec.num_heads, spec.num_kv_heads
        arguments.head_dim = spec.head_dim
    if arguments.heads % arguments.kv_heads:
        raise InvalidField("--kv-heads", f"{arguments.heads} heads cannot share them evenly")
    if arguments.head_dim % 2:
        raise InvalidField("--head-dim", "has to be even: rotary positions turn pairs")
    return DecoderConfig(
        vocab_size=spec.vocab_size,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        num_key_value_heads=arguments.kv_heads,
        head_dim=arguments.head_dim,
        intermediate_size=arguments.intermediate,
        rope_theta=usual.rope_theta if arguments.cut is None else spec.rope.theta,
        rms_norm_eps=usual.rms_norm_eps if arguments.cut is None else spec.rms_norm_eps,
        max_position_embeddings=spec.max_position_embeddings,
    )


def initial_weights(
    arguments: argparse.Namespace, model: DistilledDecoder, training: Streams
) -> dict[str, Tensor] | None:
    """What --init or --cut says; None is a random start."""
    if arguments.init is not None:
        return load_initial(arguments.init, model)
    if arguments.cut is None:
        return None
    sample = text_source.sample_of(training, model.config.max_position_embeddings)
    return cut(model.target, arguments.cut, model.config, sample)


def load_initial(folder: Path, model: DistilledDecoder) -> dict[str, Tensor]:
    """The weights of --init, float32; raises InvalidField if they are of another shape."""
    weights = given_weights(folder, "--init")
    if {n: w.shape for n, w in weights.items()} != {
        n: w.shape for n, w in model.state_dict().items()
    }:
        raise InvalidField("--init", f"{folder}: not a model of the shape that the flags describe")
    return weights


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
    weights = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    model.load_state_dict({name: weight.float() for name, weight in weights.items()})
    limit = trainer.config.evaluate_tokens
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
    write_language_model(weights, model.config, model.target, record, figures, arguments.out)
    log.info("exported step %d to %s", progress.step, arguments.out)
