"""One training run of a standalone language model, from command line to exported folder."""

import argparse
from pathlib import Path

from torch import Tensor

from draft_node.training import draft_vocabulary, run, text_source
from draft_node.training.block_export import as_read, stored
from draft_node.training.frozen_target import FrozenTarget, TargetFiles
from draft_node.training.language_model_distilled import DistilledDecoder, micro_tokens
from draft_node.training.language_model_export import write_language_model
from draft_node.training.language_model_start import starting_point
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.provenance import RunRecord
from draft_node.training.pruning import cut
from draft_node.training.text_source import TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, refuse_numbers

LONG_LENGTHS = (512, 1024)


def train(arguments: argparse.Namespace, command: str) -> int:
    """As `run.train`, of a language model."""
    return run.train(arguments, command, LanguageModelJob)


class LanguageModelJob:
    """`Job` of a decoder that learns the target's distributions."""

    warmup_s = 20.0
    feature_layers = ()

    def __init__(self, arguments: argparse.Namespace, target: TargetFiles) -> None:
        self._arguments, self._target = arguments, target
        self._start = starting_point(arguments, target)
        self._model: DistilledDecoder | None = None

    def model(self, target: FrozenTarget, source: TextSource, folder: Path) -> DistilledDecoder:
        """The tokens that it drafts are those of --init, or chosen by the text."""
        start = self._start
        draft_ids, size = start.draft_ids, start.draft_vocab_size
        if draft_ids is None and size is not None:
            texts = (source.training, source.held_out)
            sizes = (size, target.spec.vocab_size)
            draft_ids = draft_vocabulary.of_run(
                folder, lambda: draft_vocabulary.chosen(*texts, *sizes)
            )
        self._model = DistilledDecoder(
            start.shape,
            target,
            self._arguments.distill,
            owns_embeddings=start.owns_embeddings,
            draft_ids=draft_ids,
        )
        return self._model

    def initial(self, source: TextSource) -> dict[str, Tensor] | None:
        """Those of --init, or what --cut makes; None is a random start."""
        start, arguments = self._start, self._arguments
        if start.weights is not None or arguments.cut is None:
            return start.weights
        assert self._model is not None
        return cut(
            self._model.target,
            arguments.cut,
            start.shape.intermediate_size,
            text_source.sample_of(source.training, start.shape.max_position_embeddings),
            with_embeddings=start.owns_embeddings,
        )

    def config(self) -> TrainerConfig:
        """Mostly short rows, as many at once as distributions over the vocabulary fit in memory."""
        arguments, spec = self._arguments, self._target.spec
        limit = spec.max_position_embeddings
        return TrainerConfig(
            tokens_per_step=arguments.tokens_per_step,
            micro_tokens=micro_tokens(spec.vocab_size, arguments.tokens_per_step),
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

    def export(self, trainer: Trainer, source: TextSource, command: str) -> None:
        model, progress, limit = trainer.model, trainer.progress, trainer.config.evaluate_tokens
        assert isinstance(model, DistilledDecoder)
        tensors = stored(model.state_dict(), self._arguments.store_bits)
        model.load_state_dict(as_read(tensors))
        with trainer.autocast():
            figures = model.evaluate({d: stream[:limit] for d, stream in source.held_out.items()})
        refuse_numbers("a figure of the stored weights", figures.values(), progress.step)
        copied = self._arguments.cut or ()
        record = RunRecord.of(self._arguments, progress, command, copied, trainer.epochs)
        write_language_model(model, tensors, record, figures, self._arguments.out)
