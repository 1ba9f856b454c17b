"""What one sample brings to sampling: its parameters and the history they refer to.

Lives on the host and is advanced token by token. A logits row is described by a snapshot of its
sample's state, so a drafted path is a list of snapshots (`SamplingState.along`). Knows no logits.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from specserve.noise import seed_bits
from specserve.sampling.grammar import GrammarState
from specserve.types import SamplingParams

# The least normal float32: a smaller one would turn into a division by zero on the way.
_MIN_TEMPERATURE = 2.0**-126


class PenaltyState:
    """The distinct tokens a sample has seen and how often it generated each.

    Sparse on purpose: a round copies what was seen, never a row of the vocabulary. A fork shares
    what was seen with its origin and remembers what came after, because every round makes one for
    each drafted token.
    """

    __slots__ = ("_counts", "_has_forks", "_ids", "_later", "_size", "_slots")

    def __init__(self, seen_ids: Iterable[int] = ()) -> None:
        distinct = list(dict.fromkeys(seen_ids))
        self._slots = {token_id: slot for slot, token_id in enumerate(distinct)}
        self._size = len(distinct)
        capacity = self._size + 64
        self._ids = np.zeros(capacity, np.int64)
        self._ids[: self._size] = distinct
        self._counts = np.zeros(capacity, np.int64)
        self._has_forks = False  # that share `_counts`; ids and slots only grow behind their size
        self._later: tuple[int, ...] | None = None  # of a fork: what it generated since

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct token ids of prompt and output, in order of first appearance."""
        ids = self._ids[: self._size]
        unseen = self._unseen()
        return np.concatenate((ids, np.array(unseen, np.int64))) if unseen else ids

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `ids` was generated; 0 for those seen in the prompt alone."""
        counts = self._counts[: self._size]
        if not self._later:
            return counts
        unseen = self._unseen()
        counts = np.concatenate((counts, np.zeros(len(unseen), np.int64)))
        for token_id in self._later:
            slot = self._slot(token_id)
            counts[self._size + unseen.index(token_id) if slot is None else slot] += 1
        return counts

    def count(self, token_id: int) -> int:
        """How often this token was generated."""
        slot = self._slot(token_id)
        count = 0 if slot is None else int(self._counts[slot])
        return count + self._later.count(token_id) if self._later else count

    def append(self, token_id: int) -> None:
        if self._later is not None:
            self._later += (token_id,)
            return
        if self._has_forks:
            self._counts, self._has_forks = self._counts.copy(), False
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._size
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._slots[token_id] = slot
            self._ids[slot] = token_id
            self._size += 1
        self._counts[slot] += 1

    def fork(self) -> "PenaltyState":
        """Goes its own way from here; meant for the few tokens of a drafted path."""
        copy = PenaltyState.__new__(PenaltyState)
        copy._slots, copy._ids, copy._counts = self._slots, self._ids, self._counts
        copy._size = self._size
        copy._later = self._later or ()
        self._has_forks = copy._has_forks = True
        return copy

    def _slot(self, token_id: int) -> int | None:
        """Of a token that had been seen when the fork was made."""
        slot = self._slots.get(token_id)
        return None if slot is None or slot >= self._size else slot

    def _unseen(self) -> list[int]:
        """What a fork generated and its origin had not seen, each once."""
        if not self._later:
            return []
        return [each for each in dict.fromkeys(self._later) if self._slot(each) is None]


class SamplingState:
    """One sample of one request, up to the token that is sampled next.

    `end_token_ids` are those that `min_tokens` holds back: end of sequence (unless ignored) and the
    request's stop tokens. Everything derived from the parameters is worked out once, here, because
    a batch is built from these objects in every round. A place in a `grammar` is advanced with it.
    """

    __slots__ = (
        "bias_ids",
        "bias_values",
        "end_token_ids",
        "grammar",
        "has_bias",
        "is_greedy",
        "is_truncated",
        "num_generated",
        "params",
        "penalties",
        "position",
        "sample_index",
        "seed_bits",
        "temperature",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        prompt_token_ids: Sequence[int],
        sample_index: int = 0,
        end_token_ids: Sequence[int] = (),
        grammar: GrammarState | None = None,
    ) -> None:
        self.params = params
        self.grammar = grammar
        self.seed_bits = seed_bits(seed)
        self.sample_index = sample_index
        self.position = len(prompt_token_ids)  # absolute, of the token sampled next
        self.num_generated = 0
        self.end_token_ids = tuple(dict.fromkeys((*end_token_ids, *params.stop_token_ids)))
        self.is_greedy = params.temperature == 0
        self.temperature = max(params.temperature, _MIN_TEMPERATURE)
        self.is_truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self.has_bias = bool(params.logit_bias)
        self.bias_ids = list(params.logit_bias)
        self.bias_values = list(params.logit_bias.values())
        self.penalties: PenaltyState | None = None
        if params.repetition_penalty != 1:
            self.penalties = PenaltyState(prompt_token_ids)
        elif params.presence_penalty != 0 or params.frequency_penalty != 0:
            self.penalties = PenaltyState()

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Tokens that may not come next, whatever else is possible."""
        return self._held_back_ids if self.grammar is None else ()

    @property
    def _held_back_ids(self) -> tuple[int, ...]:
        return self.end_token_ids if self.num_generated < self.params.min_tokens else ()

    def allowed(self) -> NDArray[np.uint8] | None:
        """Tokens that the grammar lets come next, as `GrammarState.allowed`; None: any.

        `min_tokens` and `ignore_eos` hold ends back until the grammar can only end.
        """
        if self.grammar is None:
            return None
        ends = self.grammar.end_token_ids if self.params.ignore_eos else ()
        return self.grammar.allowed((*self._held_back_ids, *ends))

    @property
    def edits_logits(self) -> bool:
        """Whether this row's logits differ from the model's."""
        return (
            self.has_bias
            or self.penalties is not None
            or self.grammar is not None
            or (self.num_generated < self.params.min_tokens and bool(self.end_token_ids))
        )

    def append(self, token_id: int) -> None:
        """Advance by one generated token."""
        self.position += 1
        self.num_generated += 1
        if self.penalties is not None:
            self.penalties.append(token_id)
        if self.grammar is not None:
            self.grammar.append(token_id)

    def fork(self) -> "SamplingState":
        """An independent copy, for a drafted path."""
        copy = SamplingState.__new__(SamplingState)
        for name in SamplingState.__slots__:
            setattr(copy, name, getattr(self, name))
        if self.penalties is not None:
            copy.penalties = self.penalties.fork()
        if self.grammar is not None:
            copy.grammar = self.grammar.fork()
        return copy

    def without_grammar(self) -> "SamplingState":
        """The same where no grammar is kept to."""
        if self.grammar is None:
            return self
        copy = self.fork()
        copy.grammar = None
        return copy

    def along(self, drafted_token_ids: Sequence[int]) -> list["SamplingState"]:
        """The states of the rows that verify a path: itself, then one after each drafted token."""
        states: list[SamplingState] = [self]
        for token_id in drafted_token_ids:
            state = states[-1].fork()
            state.append(token_id)
            states.append(state)
        return states
