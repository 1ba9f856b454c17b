# pyright: strict
"""From events to what OpenAI's clients read: whole answers and chunks of streams.

Field names are OpenAI's, with what vLLM adds: `stop_reason`, `token_ids`, `prompt_logprobs`, and
`metrics.speculative_decoding` of requests with one sample. `token_origins` is ours.
"""

import time
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from specserve.api.events import Finished, PromptInfo, SampleEnd, SpecRecord, TokenDelta, Usage
from specserve.api.tools.tool import ToolCall, ToolCallDelta, calls_of
from specserve.types import Logprobs, TokenOrigin

Json = dict[str, Any]


def usage_of(usages: Sequence[Usage]) -> Json:
    """Of all calls of a request together."""
    prompt, generated, cached = (
        sum(getattr(usage, name) for usage in usages)
        for name in ("num_prompt_tokens", "num_generated_tokens", "num_cached_tokens")
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def speculation_of(record: SpecRecord, gamma: int) -> Json | None:
    """What speculation did for one sample, as aiperf and vLLM's clients read it; None: nothing.

    `acceptance_histogram`: rounds by the number of drafted tokens that stood, 0 to `gamma`.
    """
    if not record.num_drafts:
        return None
    reached = [record.num_drafts, *record.num_accepted_tokens_per_pos]
    reached += [0] * max(1, gamma + 2 - len(reached))
    histogram = [more - fewer for more, fewer in pairwise(reached)]
    verified = record.num_draft_tokens
    return {
        "mean_acceptance_length": 1 + record.num_accepted_tokens / record.num_drafts,
        "draft_acceptance_rate": record.num_accepted_tokens / verified if verified else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": record.num_drafts,
        "num_accepted_draft_tokens": record.num_accepted_tokens,
        "num_draft_tokens": verified,
        "num_spec_tokens": len(histogram) - 1,
    }


# --- log probabilities -----------------------------------------------------------------------


def _shown(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


def _entry(token: bytes, logprob: float) -> Json:
    return {"token": _shown(token), "logprob": logprob, "bytes": list(token)}


def chat_logprobs(positions: Sequence[Logprobs]) -> Json:
    """`logprobs` of a chat's choice."""
    return {
        "content": [
            {
                **_entry(each.token_bytes, each.logprob),
                "top_logprobs": [
                    _entry(token, logprob)
                    for token, logprob in zip(each.top_bytes, each.top_logprobs, strict=True)
                ],
            }
            for each in positions
        ]
    }


# --- one sample ------------------------------------------------------------------------------


class Sample:
    """What there is of one choice so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.origins: list[TokenOrigin] = []
        self.cache_hits: list[bool | None] = []  # of the rounds that made the tokens
        self.end: SampleEnd | None = None

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def calls(self) -> list[ToolCall]:
        return calls_of(self._calls)

    def add(self, delta: TokenDelta) -> None:
        self._pieces.append(delta.text)
        self._calls += delta.calls
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.origins += delta.origins
        self.cache_hits += [delta.cache_hit] * len(delta.token_ids)


class TokenDetails:
    """What an answer says of each token besides the text: what was asked for."""

    def __init__(self, *, ids: bool, shown: Callable[[int], bytes] | None) -> None:
        """`shown`: what a token stands for; None: where tokens came from was not asked."""
        self.has_ids, self._shown = ids, shown

    def of(self, tokens: Sample | TokenDelta) -> Json:
        """Fields of a choice."""
        details: Json = {"token_ids": tokens.token_ids} if self.has_ids else {}
        if self._shown is not None:
            if isinstance(tokens, TokenDelta):
                piece, tokens = tokens, Sample()
                tokens.add(piece)
            each = zip(tokens.token_ids, tokens.origins, tokens.cache_hits, strict=True)
            details["token_origins"] = [
                _origin(self._shown(token_id), origin, cache_hit)
                for token_id, origin, cache_hit in each
            ]
        return details


def _origin(token: bytes, origin: TokenOrigin, cache_hit: bool | None) -> Json:
    return {
        "token": _shown(token),
        "bytes": list(token),
        "origin": origin.name.lower(),
        "cache_hit": cache_hit,
    }


def ending_of(end: SampleEnd | None) -> Json:
    """`finish_reason`, and the stop string or token id of the request's that stopped it, if any."""
    if end is None:
        return {"finish_reason": None, "stop_reason": None}
    reason = end.stop_string if end.stop_string is not None else end.stop_token_id
    return {"finish_reason": str(end.finish_reason), "stop_reason": reason}


# --- one request -----------------------------------------------------------------------------


class Gathered:
    """The events of all calls of one request; samples are numbered through."""

    def __init__(
        self,
        num_calls: int,
        num_samples: int,
        eos_token_ids: Collection[int] = (),
        *,
        keeps_tokens: bool = True,
    ) -> None:
        """`eos_token_ids`: with which a model ends its answer; they are nobody's stop tokens.

        Not `keeps_tokens`: of tokens only their number, as of a stream that has sent them.
        """
        self._keeps_tokens = keeps_tokens
        self._num_samples = num_samples
        self._eos_token_ids = eos_token_ids
        self.samples = [Sample() for _ in range(num_calls * num_samples)]
        self.prompts: list[PromptInfo | None] = [None] * num_calls
        self.prompt_logprobs: list[list[Logprobs]] = [[] for _ in range(num_calls)]
        self.finished: dict[int, Finished] = {}
        self._num_generated = 0

    def index(self, call: int, sample: int) -> int:
        return call * self._num_samples + sample

    def call_of(self, index: int) -> int:
        return index // self._num_samples

    def add_prompt(self, call: int, info: PromptInfo) -> None:
        self.prompts[call] = info
        self.prompt_logprobs[call] += info.prompt_logprobs

    def add_delta(self, call: int, delta: TokenDelta) -> None:
        if self._keeps_tokens:
            self.samples[self.index(call, delta.sample_index)].add(delta)
        self._num_generated += len(delta.token_ids)
        if delta.end is not None:
            self._end(call, delta.end)

    def finish(self, call: int, finished: Finished) -> None:
        self.finished[call] = finished
        for end in finished.samples:
            self._end(call, end)

    def _end(self, call: int, end: SampleEnd) -> None:
        if end.stop_token_id in self._eos_token_ids:
            end = msgspec.structs.replace(end, stop_token_id=None)
        self.samples[self.index(call, end.sample_index)].end = end

    @property
    def num_logprobs(self) -> int:
        """Positions that are told of, of prompts and of what is kept of answers."""
        of_samples = sum(len(sample.logprobs) for sample in self.samples)
        return of_samples + sum(map(len, self.prompt_logprobs))

    @property
    def usage(self) -> Json:
        """As reported at the end; counts so far before that."""
        if len(self.finished) == len(self.prompts):
            return usage_of([each.usage for each in self.finished.values()])
        prompt = sum(0 if info is None else info.num_prompt_tokens for info in self.prompts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._num_generated,
            "total_tokens": prompt + self._num_generated,
        }

    def metrics(self, gamma: int) -> Json:
        """`metrics` of the answer, where there is one sample; else nothing."""
        if len(self.samples) > 1 or 0 not in self.finished:
            return {}
        record = self.finished[0].spec
        found = None if record is None else speculation_of(record, gamma)
        return {} if found is None else {"metrics": {"speculative_decoding": found}}


class Head:
    """What every body and chunk of one answer begins with."""

    def __init__(self, answer_id: str, kind: str, model: str) -> None:
        self.answer_id, self.kind, self.model = answer_id, kind, model
        self.created = int(time.time())

    def __call__(self, choices: list[Json], *, is_chunk: bool = False) -> Json:
        kind = f"{self.kind}.chunk" if is_chunk and self.kind == "chat.completion" else self.kind
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
