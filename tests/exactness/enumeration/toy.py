"""Targets and drafts over a handful of tokens, with distributions that change at every context."""

import random
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import target_probs
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams
from tests.specserve.sampling.random_probs import likeliest_probs

PROMPT = (0, 1)


@cache
def _drawn_logits(key: str, num_tokens: int) -> tuple[float, ...]:
    """The same ones for the same key; kept, because enumeration asks for each a thousand times."""
    rng = random.Random(key)
    return tuple(rng.gauss(0, 1) for _ in range(num_tokens))


class NeverFollows:
    """A `GrammarState`: no token may stand behind the one that is so far below it."""

    is_over = False

    def __init__(self, toy, token_ids=()):
        self._toy, self._token_ids = toy, token_ids
        self.end_token_ids = toy.end_token_ids

    def append(self, token_id):
        self._token_ids = (*self._token_ids, token_id)

    def fork(self):
        return NeverFollows(self._toy, self._token_ids)

    def num_allowed(self, token_ids):
        place = self.fork()
        for count, token_id in enumerate(token_ids):
            if token_id not in place._allowed():
                return count
            place.append(token_id)
        return len(token_ids)

    def allowed(self, held_back):
        free = [token_id for token_id in self._allowed() if token_id not in held_back]
        return np.array([sum(1 << token_id for token_id in free or self._allowed())], np.uint8)

    def _allowed(self):
        before = self._token_ids[-1] if self._token_ids else 0
        forbidden = (before + self._toy.never_follows) % self._toy.num_tokens
        return [token_id for token_id in range(self._toy.num_tokens) if token_id != forbidden]


@dataclass(frozen=True)
class Toy:
    """A target, a draft and a request. `draft` names how it relates to the target."""

    num_tokens: int = 3
    gamma: int = 2
    seed: int = 0
    draft: str = "close"
    num_kept: int = 3  # tokens of the draft's distribution
    end_token_ids: tuple[int, ...] = ()
    impossible: tuple[int, ...] = ()  # for the target, by its own logits
    fields: dict = field(default_factory=dict)  # of SamplingParams
    never_follows: int | None = None  # so far behind the token before: a grammar forbids it

    def state(self, context):
        """The sampling state after `context`, a tuple of generated tokens."""
        state = SamplingState(
            SamplingParams(**self.fields),
            seed=self.seed,
            prompt_token_ids=PROMPT,
            end_token_ids=self.end_token_ids,
            grammar=None if self.never_follows is None else NeverFollows(self),
        )
        for token_id in context:
            state.append(token_id)
        return state

    def logits(self, context):
        logits = list(_drawn_logits(f"{self.seed} target {context}", self.num_tokens))
        for token_id in self.impossible:
            logits[token_id] = float("-inf")
        return logits

    def target_distribution(self, context):
        """By the real code, float64 [V]."""
        logits = torch.tensor([self.logits(context)], dtype=torch.float64)
        return target_probs(logits, SamplingBatch.build([self.state(context)]))[0]

    def draft_probs(self, context):
        """float64, one row."""
        rng = random.Random(f"{self.seed} draft {context}")
        probs = self.target_distribution(context)
        noise = torch.tensor([rng.random() for _ in range(self.num_tokens)]).double()
        weights = {
            "equal": probs,
            "close": probs + 0.2 * noise,
            "far": noise**3,
            "disjoint": torch.where(probs == probs.max(), 0.0, noise),
            "one-hot": (noise == noise.max()).double(),
        }[self.draft]
        return likeliest_probs(weights.unsqueeze(0), self.num_kept)
