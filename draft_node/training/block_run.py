"""One training run of a DSpark, DFlash or EAGLE-3, from command line to exported folder."""

import argparse
from itertools import product
from pathlib import Path

from torch import Tensor

from draft_node.training import draft_vocabulary, losses, run, text_source, warm_start
from draft_node.training.block_export import TrainingRecord, as_read, stored, write_drafter
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import (
    WINDOW,
    BlockObjective,
    Figures,
    ObjectiveConfig,
)
from draft_node.training.block_start import starting_point
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.frozen_target import FrozenTarget, TargetFiles
from draft_node.training.optimizer import OptimizerConfig
from draft_node.training.progress import each
from draft_node.training.provenance import RunRecord
from draft_node.training.text_source import Streams, TextSource
from draft_node.training.trainer import Trainer, TrainerConfig, refuse_numbers
from specserve.drafters.spec import Eagle3Spec
from specserve.errors import InvalidField

# AdamW throughout. Expected tokens a round after 60 steps of 2,048 tokens from the target's layers,
# code and prose: AdamW at 2e-3 1.46 and 1.48, at 5e-3 1.51 and 1.53; Muon at 3e-3 1.41 and 1.43,
# and its products took an eighth of a step. Longer runs want a little less.
PEAK_LR = 4e-3
MEASURED_GAPS = (0, 4, 8)
LONG_LENGTHS = (512, 1024)
_TERMS = {"dspark": losses.DSPARK, "dflash": losses.DFLASH, "eagle3": losses.EAGLE3}


def train(arguments: argparse.Namespace, command: str) -> int:
    """As `run.train`, of a DSpark, DFlash or EAGLE-3."""
    return run.train(arguments, command, BlockJob)


class BlockJob:
    """`Job` of a drafter of whole blocks, or of one that continues features."""

    warmup_s = 20.0

    def __init__(self, arguments: argparse.Namespace, target: TargetFiles) -> None:
        self._arguments = arguments
        self._spec, self._initial = starting_point(arguments, target)
        self.feature_layers = self._spec.feature_layers
        is_new = self._initial is None
        self._copied = warm_start.copied_layers(self._spec, target.spec) if is_new else []
        self._longest = target.spec.max_position_embeddings
        refuse_crowded_rows(arguments, self._spec.gamma, self._longest)
        tables = None if self._initial is None else draft_vocabulary.from_tables(self._initial)
        self._draft_ids = tables

    def model(self, target: FrozenTarget, source: TextSource, folder: Path) -> BlockObjective:
        arguments, spec = self._arguments, self._spec
        config = ObjectiveConfig(_TERMS[arguments.kind], arguments.anchors, arguments.max_gap)
        drafter = Eagle3Model(spec) if isinstance(spec, Eagle3Spec) else BlockModel(spec)
        sample = text_source.sample_of(source.training, self._longest)
        return BlockObjective(drafter, target, config, sample, self._drafted(source, folder))

    def initial(self, source: TextSource) -> dict[str, Tensor] | None:
        if self._initial is None:
            return None
        return {f"drafter.{name}": weight for name, weight in self._initial.items()}

    def config(self) -> TrainerConfig:
        arguments, limit = self._arguments, self._spec.decoder.max_position_embeddings
        rate = arguments.rate or (1.0 if self._initial is None else 0.5)
        return TrainerConfig(
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

    def export(self, trainer: Trainer, source: TextSource, command: str) -> None:
        arguments, objective, progress = self._arguments, trainer.model, trainer.progress
        assert isinstance(objective, BlockObjective)
        drafter = objective.drafter
        tensors = stored(drafter.state_dict(), arguments.store_bits)
        drafter.load_state_dict(as_read(tensors))
        if (ids := objective.vocabulary.ids) is not None:
            tensors |= draft_vocabulary.tables(ids, drafter.spec.decoder.vocab_size)
        with trainer.autocast():
            figures = measure(objective, source.held_out, trainer.config.evaluate_tokens * 2)
        tokens = (each.tokens_per_round for gaps in figures.values() for each in gaps.values())
        refuse_numbers("a figure of the stored weights", tokens, progress.step)
        record = TrainingRecord(
            **vars(RunRecord.of(arguments, progress, command, self._copied, trainer.epochs)),
            num_anchors=arguments.anchors,
            max_gap=arguments.max_gap,
        )
        write_drafter(tensors, drafter.spec, record, figures, arguments.out)

    def _drafted(self, source: TextSource, folder: Path) -> Tensor | None:
        """The tokens that are drafted, as --init has them or by the text; None for all of them."""
        spec = self._spec
        if self._draft_ids is not None or not spec.reduces_vocab:
            return self._draft_ids
        texts = (source.training, source.held_out)
        sizes = (spec.draft_vocab_size, spec.decoder.vocab_size)
        return draft_vocabulary.of_run(folder, lambda: draft_vocabulary.chosen(*texts, *sizes))


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


def measure(
    objective: BlockObjective, held_out: Streams, num_tokens: int
) -> dict[str, dict[int, Figures]]:
    """Figures by domain and gap over the first num_tokens tokens of each stream."""
    figures: dict[str, dict[int, Figures]] = {domain: {} for domain in held_out}
    pairs = list(product(held_out, MEASURED_GAPS))
    for domain, gap in each("measuring the stored weights", pairs):
        figures[domain][gap] = objective.measure(held_out[domain][:num_tokens], gap)
    return figures
