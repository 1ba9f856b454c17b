"""Tiny random models and every kind of drafter, run by the real loop in this process.

A random drafter guesses badly but not never: the distributions of a random target are flat, and
shared noise makes equal draws of them likely. The target as its own drafter guesses nearly always
right.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.load import load_drafter
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import Drafter, StoppingThreshold
from specserve.drafters.weights import TargetWeights
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.sampling.verification.admission import NOTHING, PlanningSnapshot, RoundFacts
from specserve.types import DraftTime, Request, SamplingParams
from target_node.planning.draft_pace import DraftPace
from target_node.planning.policies import policy_named
from target_node.planning.round_prices import FrozenPrices, RoundPrices
from target_node.planning.step_table import FrozenSteps, Slopes
from tests.backends.chosen import BACKEND
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    DSPARK,
    EAGLE3,
    GRU_HEAD,
    SGLANG_EAGLE3,
    SPECULATORS,
    SPECULATORS_EAGLE3,
    ZLAB,
    options,
    write_drafter,
    write_head,
    write_part,
    write_target,
)
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint
from tests.target_node.in_process import InProcessTarget

VOCAB_SIZE = 64
MAX_LEN = 96
_CHAIN = options(num_context_tokens=4096, gamma=4, max_positions=MAX_LEN)


@dataclass(frozen=True)
class Models:
    """The target, and folders in which drafters are written."""

    target: TargetWeights
    folder: Path

    def model(self):
        return load_model(
            self.target.folder,
            backend=choose_backend(torch.device("cpu")),
            parallel=TensorParallel(),
            deterministic=True,
            dtype=torch.float32,
        )

    def drafter(self, name: str) -> Drafter:
        return DRAFTERS[name](self, self.folder / name.replace(" ", "-"))


def make_models(folder: Path) -> Models:
    target = write_target(folder / "target", max_position_embeddings=MAX_LEN)
    return Models(target, folder)


def _block(config: dict, **changes) -> Callable[[Models, Path], Drafter]:
    def make(models: Models, folder: Path) -> Drafter:
        write_drafter(folder, config, **changes)
        return load_drafter(folder, models.target, options(num_context_tokens=4096))

    return make


def _local_head(models: Models, folder: Path) -> Drafter:
    write_drafter(folder, DFLASH)
    head = write_head(folder / "head", GRU_HEAD)
    return load_drafter(folder, models.target, options(num_context_tokens=4096, local_head=head))


def _language_model(models: Models, folder: Path) -> Drafter:
    write_checkpoint(folder, QWEN3, max_position_embeddings=MAX_LEN, num_hidden_layers=1)
    return load_drafter(
        folder, models.target, options(num_context_tokens=4096, gamma=4, max_positions=MAX_LEN)
    )


def _part_of_the_target(models: Models, folder: Path) -> Drafter:
    write_part(folder, max_position_embeddings=MAX_LEN)
    return load_drafter(folder, models.target, _CHAIN)


def _target_itself(models: Models, folder: Path) -> Drafter:
    return load_drafter(models.target.folder, models.target, _CHAIN)


DRAFTERS: dict[str, Callable[[Models, Path], Drafter]] = {
    "dspark vanilla": _block(DSPARK),
    "dspark gated": _block(DSPARK, markov_head_type="gated"),
    "dspark rnn": _block(DSPARK, markov_head_type="rnn"),
    "dflash anchor first": _block(DFLASH),
    "dflash fill in": _block(ZLAB),
    "dflash with a local head": _local_head,
    "speculators": _block(SPECULATORS),
    "eagle3": _block(EAGLE3),
    "eagle3 of SGLang": _block(SGLANG_EAGLE3),
    "eagle3 of speculators": _block(SPECULATORS_EAGLE3),
    "language model": _language_model,
    "a part of the target": _part_of_the_target,
    "the target itself": _target_itself,
    "ngram": lambda models, folder: NgramDrafter(gamma=5, shortest=1),
}
# One of each kind; the others take the same paths and are looked at by slow tests.
QUICK = ("dspark vanilla", "eagle3", "language model", "ngram")
QUICK_OR_SLOW = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS
]


class RandomBudget:
    """`Allocator` of random lengths, which a caller of the rejection family may choose as well.

    Not by the lengths of blocks, which know tokens where chains end by what was drafted.
    """

    compares_rows = False

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def allocate(
        self, survivals: Sequence[Sequence[float]], capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        lens = []
        for survival in survivals:
            lens.append(min(self._rng.randint(0, 6), len(survival), capacity))
            capacity -= lens[-1]
        return lens


class Jagged:
    """A policy that is shipped, under a table and a price that are others in every round."""

    def __init__(self, name: str, seed: int) -> None:
        self._policy, self._rng = policy_named(name), random.Random(seed)
        self.compares_rows = self._policy.compares_rows

    def allocate(
        self, survivals: Sequence[Sequence[float]], capacity: int, facts: RoundFacts = NOTHING
    ) -> list[int]:
        costs = Stairs(self._rng.randrange(10**6))
        snapshot = PlanningSnapshot(self._rng.random() ** 2, costs)
        return self._policy.allocate(survivals, capacity, replace(facts, snapshot=snapshot))


def confident(drafter):
    """With the largest probability of each distribution as its confidence, which ends chains."""
    drafter.probs_confidence = lambda first_slot, logits: logits.float().softmax(-1).amax(-1)
    return drafter


class MoodyPrices(RoundPrices):
    """`RoundPrices` that are others in every round: of tokens, and of the time a pass takes."""

    def __init__(self, seed: int) -> None:
        super().__init__(BACKEND)
        self._rng = random.Random(seed)

    def freeze(self) -> FrozenPrices:
        # From nothing, where chains are whole, to more than any pass can bring.
        pace = self._rng.choice([0.0, 1.0, 1e2, 1e3, 1e9])
        mood = StoppingThreshold(tokens_per_s=pace, token_price=self._rng.random() ** 2)
        costs = Stairs(self._rng.randrange(1000))
        return FrozenPrices({}, lambda bits, *, is_mixed: mood, MoodySteps(costs))


class MoodyPace(DraftPace):
    """Drafts that take another time in every round: some are for nobody, some for few rows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    def freeze(self) -> DraftPace:
        fixed_s = 0.1 if self._rng.random() < 0.9 else 1e9  # the round goes without drafts
        token_s = self._rng.choice([0.0, 0.1, 1.0])  # which blind chains end by
        a_row_s = self._rng.choice([0.0, 0.01, 0.5])  # which those end by who bring least
        times = [DraftTime(n, fixed_s + n * a_row_s, token_s) for n in (1, 256)]
        return DraftPace(lambda: DraftTimes(times))


class MoodySteps(FrozenSteps):
    """Forwards take what these costs say, whatever their rows and keys."""

    def __init__(self, costs: "Stairs") -> None:
        super().__init__([], Slopes(), 1.0, ())
        self._costs = costs

    def at(self, num_rows: int, num_keys: int) -> "Stairs":
        return self._costs


class Stairs:
    """`StepCosts` in steps of any height and length, downwards too: a jagged table."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self._edges = sorted(rng.sample(range(1, 80), 8))
        self._seconds = [rng.choice([1.0, 1.1, 1.5, 2.0, 4.0]) for _ in range(9)]

    def seconds(self, num_tokens):
        return np.array(self._seconds)[np.searchsorted(self._edges, num_tokens, side="right")]


MIXTURES: list[dict] = [
    {},
    {},
    {"top_p": 0.9},
    {"top_k": 8},
    {"min_p": 0.1},
    {"presence_penalty": 0.9, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.4},
    {"logit_bias": {4: 3.0, 5: -100.0}},
    {"stop_token_ids": (7, 9), "min_tokens": 4},
    {"ignore_eos": True, "min_tokens": 6},
    {"n": 2},
    {"logprobs": 2},
    {"prompt_logprobs": 1, "logprobs": 0},
]


def requests(count: int, *, seed: int = 0, mixtures: Sequence[dict] = MIXTURES) -> list[Request]:
    """Seeded requests of every kind: temperature 0 to 1.5, some with prompts in common."""
    rng = random.Random(seed)
    stems = [[rng.randrange(1, VOCAB_SIZE - 1) for _ in range(24)] for _ in range(4)]
    made = []
    for index in range(count):
        stem = rng.choice(stems)[: rng.randint(1, 24)]
        tail = [rng.randrange(1, VOCAB_SIZE - 1) for _ in range(rng.randint(0, 6))]
        fields = {
            "temperature": rng.choice([0.0, 0.5, 1.0, 1.0, 1.5]),
            "max_tokens": rng.choice([1, 2, 9, 24, 40]),
            **rng.choice(mixtures),
        }
        made.append(
            Request(
                request_id=f"r{index}",
                prompt_token_ids=stem + tail,
                sampling=SamplingParams(**fields),
                seed=rng.randrange(2**64),
                seeded_by_user=True,
            )
        )
    return made


def run(target: InProcessTarget, batch: list[Request], *, at_once: int) -> dict:
    """Everything a client would see of each sample: tokens, log probabilities, finish reason."""
    waiting, seen = list(batch), {}
    while waiting or target.node.num_requests or target.control.inbox:
        while waiting and target.node.num_requests + len(target.control.inbox) < at_once:
            target.submit(waiting.pop(0))
        target.turn()
    for message in target.control.sent:
        for delta in getattr(message, "deltas", []):
            tokens, logprobs, reasons = seen.setdefault(
                (delta.request_id, delta.sample_index), ([], [], [])
            )
            tokens += delta.token_ids
            logprobs += delta.logprobs or []
            reasons += [delta.finish_reason] if delta.finish_reason else []
    ends = {name: (end.terminal, end.error) for name, end in target.ends.items()}
    return {"samples": seen, "ends": ends, "prompts": target.prompt_logprobs}
