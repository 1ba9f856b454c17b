# pyright: strict
"""What a client learns about its request, in no wire's terms.

A stream is one `PromptInfo` (more of them while prompt logprobs arrive), any number of
`TokenDelta`, and one `Finished`, or else it raises a `SpecserveError`; never both, never neither. A
`Completion` is all of it in one record, as the Python client returns it.
"""

import msgspec

from specserve.api.tools.tool import ToolCall, ToolCallDelta
from specserve.types import FinishReason, Logprobs, TokenOrigin


class PromptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt as the target will see it."""

    request_id: str
    num_prompt_tokens: int
    prompt_logprobs: list[Logprobs] = []  # of consecutive tokens, from the second on


class SampleEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why one sample ended, and on what."""

    sample_index: int
    finish_reason: FinishReason
    stop_string: str | None = None
    stop_token_id: int | None = None


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one round added to one sample; `text` and `calls` may trail `token_ids`."""

    sample_index: int
    token_ids: list[int]
    text: str
    origins: list[TokenOrigin]
    cache_hit: bool | None = None
    logprobs: list[Logprobs] | None = None
    calls: list[ToolCallDelta] = []  # which are no part of `text`
    # Not on the wire of specserve.v1, where `Finished` has both.
    end: SampleEnd | None = None  # of the last one
    verify_len: int = 0  # drafted tokens that the round verified


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens; generated ones are those emitted, nothing decoded beyond a stop."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time went, in seconds, as the target saw it unless stated otherwise."""

    queue_s: float
    prefill_s: float
    decode_s: float
    time_to_first_token_s: float  # from arrival at the API process
    total_s: float  # from arrival at the API process


class SpecRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation did for the tokens sent of one request; all zero while it is off."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The last event of a request that succeeded."""

    samples: list[SampleEnd]
    usage: Usage
    timings: Timings
    spec: SpecRecord | None = None


Event = PromptInfo | TokenDelta | Finished


class CompletedSample(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers; the records per token are in the order of `token_ids`."""

    sample_index: int
    text: str
    token_ids: list[int]
    origins: list[TokenOrigin]
    finish_reason: FinishReason
    stop_string: str | None = None
    stop_token_id: int | None = None
    logprobs: list[Logprobs] | None = None
    tool_calls: list[ToolCall] = []


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request with all its samples."""

    request_id: str
    samples: list[CompletedSample]
    prompt: PromptInfo
    usage: Usage
    timings: Timings
    spec: SpecRecord | None = None

    @property
    def text(self) -> str:
        """Of the first sample."""
        return self.samples[0].text
