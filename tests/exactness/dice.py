"""A target that throws a loaded die and a drafter that throws another one, in the real loops.

Every token of every answer has the same distribution whatever came before it, so that a second of
computing gives ten thousand samples, and distributions that are off by a percent are found.
Everything but the two models is what serves: nodes, links, draft batches, admission, verification.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np
import torch

from specserve.audit.chi_square import Fit, goodness_of_fit
from specserve.drafters.protocol import ContextUpdate, DraftBatch, FeatureSpec, SpeculationBatch
from specserve.models.transformer import Transformer
from specserve.sampling.draft_sampler import BlockLayout
from specserve.sampling.verification.admission import Allocator
from specserve.sampling.verification.method import VerificationMethod
from specserve.telemetry import VerifiedRow
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.step_table import StepTable
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.miss_policy import Miss
from tests.backends.chosen import BACKEND
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

NEVER = -60.0  # logit of every other token: finite, as a model's are
ROWS = 64
ANSWER_LEN = 24
WINDOWS = (1, 2, 3)  # tokens that are tested jointly
SAMPLES = 4  # of a request
NUM_EARLY = 6  # tokens at which samples of a request are still in the same rounds, or nearly
NOTHING = -1  # was verified
USUAL = Drafting(draft_batch=64, fan_out=3, num_kept=8, pace=(0, 1, 2, 3, 4), max_extension=8192)
IN_TIME = replace(USUAL, pace=(6,))


@dataclass(frozen=True)
class Dice:
    """The probabilities of the first few tokens, as the target and as the drafter have them."""

    target: tuple[float, ...]
    draft: tuple[tuple[float, ...], ...]  # which of them turns with row, position, anchor and slot
    gamma: int = 4  # tokens of a block

    @property
    def acceptance(self) -> float:
        """How often a drafted token stands, on average."""
        overlaps = [sum(map(min, self.target, probs)) for probs in self.draft]
        return sum(overlaps) / len(overlaps)


# Where each distribution is taken for the one after it, or the second after it, or all for one of
# them, tokens are off by a total variation of at least 0.16: whatever mixes them up does not
# average out.
FOUR_SIDES = Dice(
    (0.5, 0.25, 0.15, 0.1),
    (
        (0.52, 0.28, 0.15, 0.05),
        (0.05, 0.2, 0.05, 0.7),
        (0.4, 0.38, 0.17, 0.05),
        (0.11, 0.05, 0.78, 0.06),
    ),
)
# One distribution for all rows: what samples of a request share shows in what they draft.
EVEN_SIDES = Dice((0.5, 0.25, 0.15, 0.1), ((0.25, 0.25, 0.25, 0.25),))
COINS = Dice((0.75, 0.25), ((0.6, 0.4),))
ODD_COINS = Dice((0.5, 0.5), ((0.9, 0.1),), gamma=2)


def logits_of(probs: tuple[float, ...], vocab_size: int) -> torch.Tensor:
    logits = torch.full((vocab_size,), NEVER)
    logits[: len(probs)] = torch.tensor(probs).log()
    return logits


class DieRunner:
    """In place of `Runner`."""

    def __init__(self, model: Transformer, dice: Dice) -> None:
        self.model, self.backend, self.steps = model, BACKEND, StepTable()
        self._logits = logits_of(dice.target, model.config.vocab_size)
        self.num_computed = 0

    def forward(self, batch) -> torch.Tensor | None:
        self.num_computed = len(batch.token_ids)
        count = len(batch.logits_index)
        return self._logits.expand(count, -1).clone() if count else None


class DieDrafter:
    """`Drafter` without weights: a context is a number of positions.

    Distributions turn with the row, with the block (its position and anchor) and with the slot, as
    those of a model do: whoever takes one for another is found, unless they lie four rows apart.
    """

    name = "die"
    feature_size = 0
    features: FeatureSpec | None = None
    holds_pending_tokens = True
    stops_in_time = False

    def __init__(self, dice: Dice, vocab_size: int) -> None:
        self.gamma = dice.gamma
        self._dice = dice
        self._vocab_size = vocab_size
        self._logits = torch.stack([logits_of(probs, vocab_size) for probs in dice.draft])
        self._lens: dict[int, int] = {}

    def context_len(self, row: int) -> int:
        return self._lens.get(row, 0)

    def extend(self, update: ContextUpdate) -> None:
        for row, start, count in zip(update.rows, update.starts, update.counts, strict=True):
            assert start == self.context_len(row)
            self._lens[row] = start + count

    def truncate(self, row: int, length: int) -> None:
        self._lens[row] = length

    def free(self, row: int) -> None:
        self._lens.pop(row, None)

    def draft(self, batch: DraftBatch, method) -> SpeculationBatch:
        lens = batch.context_lens or [self.context_len(row) for row in batch.rows]
        positions = torch.tensor(lens) + 1
        sampling = method.begin(BlockLayout(positions, self.gamma, self._vocab_size, None))
        turns = torch.tensor(batch.rows) + positions + 3 * batch.anchor_ids
        logits = self._logits[(turns[:, None] + torch.arange(self.gamma)) % len(self._logits)]
        tokens = sampling.draw(0, logits.clone())
        confidences = self.confidences(tokens)
        return SpeculationBatch(tokens, sampling.draft_probs(), confidences, logits=logits)

    def confidences(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens have no say."""
        return torch.full(tokens.shape, self._dice.acceptance)


class MoodyDieDrafter(DieDrafter):
    """Its confidence in the third token follows from the second, as that of a causal head may.

    One outcome is prepared. If the third token is sure, that is the one in which all stand; if it
    is not, that in which the first falls: as much as a plan may depend on drafted tokens.
    """

    def confidences(self, tokens: torch.Tensor) -> torch.Tensor:
        confidences = torch.tensor([0.7, 0.67, 0.5, 0.5]).repeat(len(tokens), 1)
        confidences[tokens[:, 1] == 1, 2] = 1.0
        return confidences


@dataclass(frozen=True)
class Table:
    """Who plays: the drafter, how it is verified, what befalls it."""

    method: VerificationMethod = VerificationMethod.FORESEEABLE
    drafting: Drafting = USUAL
    dice: Dice = FOUR_SIDES
    drafter: Callable[[Dice, int], DieDrafter] = DieDrafter
    miss: Miss | None = Miss.SKIP
    auto: bool = False
    budget: Callable[[], Allocator] = ThresholdPolicy
    places: int = 4 * ROWS  # tokens of a forward
    num_blocks: int = 4096


class FirstTokens:
    """The first token of every round, by what its past says of it.

    Under a sound ratio test it has the target's distribution however many tokens the round before
    accepted, and whether or not a block had been prepared: whoever is late by accident is late for
    all.
    """

    def __init__(self, pair: InProcessPair) -> None:
        self.counts: dict[tuple[int, bool], Counter[int]] = defaultdict(Counter)
        self._accepted: dict[Sequence, int] = {}
        self._pair = pair
        self._observe = pair.speculation.observe
        pair.speculation.observe = self.observe

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        for row, result in zip(rows, sampled, strict=True):
            was_hit = self._pair.speculation.was_hit(row.sequence)
            before = self._accepted.get(row.sequence)
            if was_hit is not None and before is not None:
                self.counts[before, was_hit][result.token_ids[0]] += 1
            self._accepted[row.sequence] = result.num_accepted if row.verify_len else NOTHING
        return self._observe(rows, sampled)


@dataclass(frozen=True)
class Throws:
    """What was thrown, and how."""

    dice: Dice
    answers: list[list[int]]  # those of a request side by side
    first_tokens: dict[tuple[int, bool], Counter[int]]
    hit_rate: float
    num_drafted: int
    num_accepted: int
    num_lives: int
    num_switches: int
    num_preemptions: int
    num_broken_laws: int

    def fits(self) -> list[Fit]:
        """Of tokens, neighbours jointly, samples jointly, and first tokens of rounds by group."""
        joint = [*(self._fit(size) for size in WINDOWS), self.pair_fit()]
        sides = range(len(self.dice.target))
        first = [
            goodness_of_fit([counts[side] for side in sides], self.dice.target)
            for _, counts in sorted(self.first_tokens.items())
        ]
        return joint + first

    def pair_fit(self) -> Fit:
        """Of the early tokens of two samples of a request, jointly."""
        counts = Counter(
            pair
            for one, other in zip(self.answers[::2], self.answers[1::2], strict=True)
            for pair in zip(one[1:NUM_EARLY], other[1:NUM_EARLY], strict=True)
        )
        cells = list(product(range(len(self.dice.target)), repeat=2))
        probs = [self.dice.target[one] * self.dice.target[other] for one, other in cells]
        return goodness_of_fit([counts[cell] for cell in cells], probs)

    def _fit(self, size: int) -> Fit:
        windows = Counter(
            tuple(answer[start : start + size])
            for answer in self.answers
            for start in range(0, len(answer) - size + 1, size)
        )
        probs_of = self.dice.target
        cells = list(product(range(len(probs_of)), repeat=size))
        assert windows.keys() <= set(cells)
        probs = [prod(probs_of[token] for token in cell) for cell in cells]
        return goodness_of_fit([windows[cell] for cell in cells], probs)


def throw(model: Transformer, table: Table, num_answers: int, *, seed: int = 0) -> Throws:
    """Unseeded answers of `ANSWER_LEN` tokens each, `SAMPLES` to a request."""
    make = lambda: table.drafter(table.dice, model.config.vocab_size)  # noqa: E731
    with InProcessPair(
        model,
        make,
        table.drafting,
        miss=table.miss,
        auto=table.auto,
        budget=table.budget,
        default_method=table.method,
        num_blocks=table.num_blocks,
        max_batch_rows=ROWS,
        max_batch_tokens=table.places,
        prefix_cache=False,
    ) as pair:
        pair.node.runner = DieRunner(model, table.dice)  # pyright: ignore[reportAttributeAccessIssue]
        first_tokens = FirstTokens(pair)
        seeds = np.random.default_rng(seed)
        fields = {"n": SAMPLES, "max_tokens": ANSWER_LEN, "ignore_eos": True, "temperature": 1.0}
        for index in range(num_answers // SAMPLES):
            nonce = int(seeds.integers(2**63))
            fields["request_min_tokens_per_s"] = 1e6 if index % 2 else None  # behind for ever
            pair.submit(request(f"r{index}", [0, 1, 2, 3], seed=nonce, **fields))
        pair.run_until_idle(limit=100_000)
        stats = [end.stats for end in pair.ends.values()]
        return Throws(
            table.dice,
            [tokens for _, tokens in sorted(pair.tokens.items())],
            first_tokens.counts,
            hit_rate=pair.hit_rate,
            num_drafted=sum(s.num_drafted_tokens for s in stats),
            num_accepted=sum(s.num_accepted_tokens for s in stats),
            num_lives=sum(draft.num_lives for draft in pair.drafts),
            num_switches=pair.chooser.num_switches if pair.chooser else 0,
            num_preemptions=pair.scheduler.num_preemptions,
            num_broken_laws=pair.sampler.num_broken_laws,
        )
