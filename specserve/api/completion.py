# pyright: strict
"""A finished request in one record, as the Python client returns it."""

import msgspec

from specserve.api.events import PromptInfo, SpecRecord, Timings, Usage
from specserve.types import FinishReason, Logprobs, TokenOrigin


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
