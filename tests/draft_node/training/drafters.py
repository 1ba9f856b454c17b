"""Small targets with tokenizers, and drafters of every kind to train for them."""

import argparse
from pathlib import Path

import numpy as np
import torch

from draft_node.training import losses, tokenizer
from draft_node.training.__main__ import KINDS
from draft_node.training.block_drafters import add_options
from draft_node.training.block_model import BlockModel
from draft_node.training.block_objective import BlockObjective, ObjectiveConfig
from draft_node.training.block_start import starting_point
from draft_node.training.chats.store import ChatStore, Exchange
from draft_node.training.eagle3_model import Eagle3Model
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.losses import LossWeights
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint

VOCAB = 280
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# Of every architecture, with every kind of frequencies, with and without a head of its own.
TARGETS = {
    "qwen3": {"config": QWEN3},
    "llama3": {"config": LLAMA},
    "yarn": {"config": LLAMA, "rope_scaling": YARN, "tie_word_embeddings": True},
}
TEXT = ["def some(text):\n    return to(train, on)\n", "and more of it, abcdefgh" * 3] * 40


def write_target(folder: Path, config: dict = QWEN3, **changes) -> Path:
    """A random target of 3 layers whose vocabulary is a real tokenizer's."""
    changes = {"vocab_size": VOCAB, "num_hidden_layers": 3, "eos_token_id": 0, **changes}
    write_checkpoint(folder, config, **changes)
    tokenizer.save(tokenizer.train(TEXT, VOCAB), folder)
    return folder


def arguments(kind: str, *flags: str) -> argparse.Namespace:
    """What the command line of a kind parses to."""
    assert kind in KINDS
    parser = argparse.ArgumentParser()
    parser.set_defaults(kind=kind)
    add_options(parser)
    return parser.parse_args(["--out", "unused", *flags])


def make_objective(
    target: FrozenTarget,
    kind: str,
    *flags: str,
    terms: LossWeights = losses.DSPARK,
    sample: torch.Tensor | None = None,
    draft_ids: torch.Tensor | None = None,
    **config,
) -> BlockObjective:
    """A drafter with random weights everywhere, so that no part of it is idle."""
    flags = ("--gamma", "4", *(("--rank", "6") if kind == "dspark" else ()), *flags)
    spec, _ = starting_point(arguments(kind, *flags), target)
    drafter = Eagle3Model(spec) if kind == "eagle3" else BlockModel(spec)
    objective = BlockObjective(drafter, target, ObjectiveConfig(terms, **config), sample, draft_ids)
    objective.initialise(0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in objective.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
            parameter.add_(drawn * (0.2 if "norm" in name else 1.0))
    return objective


QUESTION = 270  # the token that questions of `write_chats` are made of


def write_chats(folder: Path, num_chats: int = 240) -> Path:
    """Chats with answers of a few tokens that follow each other by a pattern."""
    answer = patterned_stream(24).tolist()
    chats = [Exchange(n, 0.0, [QUESTION] * 8, answer) for n in range(num_chats)]
    folder.mkdir()
    ChatStore(folder).add(num_chats, chats, VOCAB)
    return folder


def random_tokens(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(8, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def patterned_stream(length: int = 4000) -> np.ndarray:
    return np.resize(np.random.default_rng(0).integers(8, 60, size=23), length).astype(np.uint16)
