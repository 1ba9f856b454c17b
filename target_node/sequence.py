"""The state of one running sample of one request. Knows neither tensors nor the other samples."""

from dataclasses import dataclass, field

from specserve.grammars.compiler import CompiledGrammar
from specserve.types import FinishReason, Request


@dataclass(eq=False)
class Sequence:
    """Tokens, KV blocks and progress of one sample. Lengths in tokens.

    `token_ids` is prompt and answer; the last of them is the next anchor: its KV is not computed
    yet. `num_computed` counts the tokens whose KV is committed. While that is less than
    `len(token_ids) - 1` the sequence is prefilling, again after a preemption.
    """

    request: Request
    sample_index: int
    arrival: int
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached: int = 0  # prompt tokens that the prefix cache served at first admission
    num_preemptions: int = 0
    num_rounds: int = 0
    num_drafts: int = 0  # rounds that verified at least one drafted token
    num_drafted_tokens: int = 0  # those that were verified
    num_accepted_per_position: list[int] = field(default_factory=list)
    num_prompt_logprobs: int = 0  # prompt positions already reported
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of the full blocks among them
    prefix_hashes: list[bytes] = field(default_factory=list)  # looked for in the prefix cache
    decodes_since_s: float | None = None  # CLOCK_MONOTONIC; of its first token
    finish_reason: FinishReason | None = None
    admitted: bool = False
    may_speculate: bool = True
    grammar: CompiledGrammar | None = None  # of its answer

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: priority, then arrival, then sample."""
        return (self.request.priority, self.arrival, self.sample_index)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    def mark_decoding(self, now_s: float) -> None:
        """Tokens were sampled; the first ones begin its decoding, preempted later or not."""
        if self.decodes_since_s is None:
            self.decodes_since_s = now_s

    def count_drafts(self, verify_len: int, num_accepted: int) -> None:
        """Account for one round's verified and accepted tokens."""
        if not verify_len:
            return
        self.num_drafts += 1
        self.num_drafted_tokens += verify_len
        add_positions(self.num_accepted_per_position, verify_len, num_accepted)

    @property
    def owes_prompt_logprobs(self) -> bool:
        wanted = self.request.sampling.prompt_logprobs is not None and self.sample_index == 0
        return wanted and self.num_prompt_logprobs < self.num_prompt - 1

    @property
    def is_decoding(self) -> bool:
        return self.num_pending == 1 and self.num_generated > 0


def add_positions(counts: list[int], verify_len: int, num_accepted: int) -> None:
    """Count the accepted tokens of a block by their places; `counts` grows to `verify_len`."""
    counts += [0] * (verify_len - len(counts))
    for position in range(num_accepted):
        counts[position] += 1
