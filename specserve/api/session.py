# pyright: strict
"""One request's life: validate, tokenise, submit, stream, exactly one terminal.

    admit -> encode -> validate -> submit -> PromptInfo -> TokenDelta ... -> Finished | error

Whatever happens in between (an error, the caller's cancellation, its deadline), leaving
`Session.stream` releases the request, and what the target still does for it is aborted.
Knows no gRPC and no HTTP; every front end translates to and from `GenerateCall` and the events.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing
from typing import TypeVar

import msgspec

from specserve.api.call import GenerateCall, SpecOptions, limits_of
from specserve.api.events import Event, Finished, PromptInfo, SpecRecord, Timings, Usage
from specserve.api.hub import Hub
from specserve.api.keys import Tenant, salt_of
from specserve.api.metrics import Metrics
from specserve.api.open_request import OpenRequest
from specserve.api.sample_text import SampleText
from specserve.api.tokenizer import TextTokenizer
from specserve.api.tools.grammar import check_calls
from specserve.api.tracing import Served, Tracer
from specserve.api.unsent import UnsentDrafts
from specserve.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidField,
    NotFound,
    SpecserveError,
    Unsupported,
    from_code,
)
from specserve.grammars.checker import GrammarChecker
from specserve.types import (
    Grammar,
    PromptLogprobs,
    Ready,
    Request,
    RequestEnd,
    SampleDelta,
    SamplingParams,
    Terminal,
)
from specserve.validation import validate_request, validate_sampling

_LOGPROBS_PER_EVENT = 512  # positions; keeps one message far below the wire's limit
_MODES = ("auto", "off", "sync", "async")

_ResultT = TypeVar("_ResultT")


class Session:
    """Serves one call. `stream` may be used once."""

    def __init__(
        self,
        call: GenerateCall,
        tenant: Tenant,
        hub: Hub,
        tokenizer: TextTokenizer,
        grammars: GrammarChecker,
        metrics: Metrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._call = call
        self._tenant = tenant
        self._metrics = metrics
        self._tracer = tracer
        self._grammars = grammars
        self._hub = hub
        self._tokenizer = tokenizer
        self._arrived_s = time.monotonic()
        self._first_token_s: float | None = None
        self._token_s: dict[int, float] = {}  # when the latest came, by sample
        self._samples: list[SampleText] = []
        self._unsent = UnsentDrafts()
        self._spec = SpecRecord()
        self._has_ended = False
        self.request_id = secrets.token_hex(8) if call.request_id is None else call.request_id

    async def stream(self) -> AsyncGenerator[Event]:
        """The events of the request; close the generator to abort it, or throw in why.

        Raises:
            SpecserveError: the request did not finish; `code` says why.
        """
        try:
            async with aclosing(self._serve()) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        self._note_end(event)
                    yield event
        except SpecserveError as error:
            self._note_end(error)
            raise
        except Exception as error:
            self._note_end(SpecserveError(f"a defect: {type(error).__name__}"))
            raise
        finally:
            self._note_end(Cancelled("the client has left"))

    def _note_end(self, outcome: Finished | SpecserveError) -> None:
        """Before anybody hears of it: who asks then finds it counted. Only the first counts."""
        if self._has_ended:
            return
        self._has_ended = True
        if isinstance(outcome, Finished):
            self._metrics.finished(outcome)
        else:
            self._metrics.failed(outcome.code)
        if self._tracer is not None:
            total_s = time.monotonic() - self._arrived_s
            served = Served(
                call=self._call,
                request_id=self.request_id,
                outcome=outcome,
                spec=self._spec,
                total_s=total_s,
            )
            self._tracer.record(served)

    async def _serve(self) -> AsyncGenerator[Event]:
        opened = self._hub.admit(self.request_id, self._tenant)
        try:
            request = await self._in_time(self._prepare())
            self._hub.submit(opened, request)
            self._samples = [
                self._sample(index, request.sampling) for index in range(request.sampling.n)
            ]
            num_prompt_tokens = len(request.prompt_token_ids)
            yield PromptInfo(request_id=self.request_id, num_prompt_tokens=num_prompt_tokens)
            while True:
                arrived = await self._in_time(opened.next())
                match arrived:
                    case PromptLogprobs():
                        for info in self._split(arrived, num_prompt_tokens):
                            yield info
                    case RequestEnd():
                        yield self._finish(arrived)
                        return
                    case _:
                        for event in self._read_round(opened, arrived):
                            yield event
        finally:
            self._hub.release(opened)

    def _sample(self, index: int, sampling: SamplingParams) -> SampleText:
        shows, use = not self._call.skip_special_tokens, self._call.tools
        if use is None:
            return SampleText(index, sampling, self._tokenizer.detokenizer(shows_special=shows))
        calling = self._tokenizer.tool_calling
        marks = calling.mark_ids
        detokenizer = self._tokenizer.detokenizer(shows_special=shows, shown_ids=marks)
        return SampleText(index, sampling, detokenizer, calling.parser(use))

    async def _prepare(self) -> Request:
        """The validated request; cheap checks come before tokenisation."""
        call, ready = self._call, self._hub.ready.result()
        limits = limits_of(ready)
        if call.model is not None and call.model != ready.model:
            raise NotFound(f"model: {call.model[:64]!r} is not served here; {ready.model!r} is")
        max_verify_len = _max_verify_len(call.spec, ready)
        validate_sampling(call.sampling, limits)
        grammar = await self._checked_grammar()
        request = Request(
            request_id=self.request_id,
            prompt_token_ids=await self._tokenizer.encode_prompt(call.prompt, call.chat),
            sampling=call.sampling,
            seed=secrets.randbits(64) if call.seed is None else call.seed,
            seeded_by_user=call.seed is not None,
            cache_salt=call.cache_salt,
            priority=call.priority,
            deadline_s=call.deadline_s,
            max_verify_len=max_verify_len,
            min_tokens_per_s=call.min_tokens_per_s,
            grammar=grammar,
        )
        request = validate_request(request, limits)  # which names what the caller sent
        return msgspec.structs.replace(request, cache_salt=salt_of(self._tenant, call.cache_salt))

    async def _checked_grammar(self) -> Grammar | None:
        """What the answer has to be. Raises InvalidField, Unsupported."""
        wanted, use = self._call.grammar, self._call.tools
        if use is None:
            if wanted is not None:
                await self._grammars.check(wanted)
            return wanted
        grammar = self._tokenizer.tool_calling.grammar(use, wanted)
        if grammar is not None:
            await check_calls(grammar, use, wanted, self._grammars.check)
        return grammar

    def _read_round(self, opened: OpenRequest, deltas: list[SampleDelta]) -> Iterator[Event]:
        for delta in deltas:
            if not 0 <= delta.sample_index < len(self._samples):
                raise SpecserveError(f"round names sample {delta.sample_index}")
            sample = self._samples[delta.sample_index]
            event = sample.push(delta)
            self._unsent.drop(delta, 0 if event is None else len(event.token_ids))
            if event is None:
                continue
            if event.logprobs is not None:
                logprobs = self._tokenizer.with_bytes(event.logprobs)
                event = msgspec.structs.replace(event, logprobs=logprobs)
            self._note_time(delta.sample_index)
            if sample.end is not None and delta.finish_reason is None:
                self._hub.stop_sample(opened, delta.sample_index)
            yield event

    def _note_time(self, sample_index: int) -> None:
        """Tokens of a sample have come."""
        now_s = time.monotonic()
        if self._first_token_s is None:
            self._first_token_s = now_s
        before_s = self._token_s.get(sample_index)
        if before_s is not None:
            self._metrics.tokens_came(now_s - before_s)
        self._token_s[sample_index] = now_s

    def _split(self, logprobs: PromptLogprobs, num_prompt_tokens: int) -> Iterator[PromptInfo]:
        for start in range(0, len(logprobs.positions), _LOGPROBS_PER_EVENT):
            yield PromptInfo(
                request_id=self.request_id,
                num_prompt_tokens=num_prompt_tokens,
                prompt_logprobs=self._tokenizer.with_bytes(
                    logprobs.positions[start : start + _LOGPROBS_PER_EVENT]
                ),
            )

    def _finish(self, end: RequestEnd) -> Finished:
        """The last event, or the error the request ended with."""
        if end.terminal is Terminal.CANCELLED:
            raise from_code(end.code or "CANCELLED", end.error or "the request was aborted")
        ends = [sample.end for sample in self._samples if sample.end is not None]
        if end.terminal is not Terminal.FINISHED or len(ends) != len(self._samples):
            raise from_code(end.code, end.error or "the target ended the request too early")
        stats, now_s = end.stats, time.monotonic()
        self._spec = self._unsent.record(stats)
        return Finished(
            samples=ends,
            usage=Usage(
                num_prompt_tokens=stats.num_prompt_tokens,
                num_cached_tokens=stats.num_cached_tokens,
                num_generated_tokens=sum(sample.num_tokens for sample in self._samples),
            ),
            timings=Timings(
                queue_s=stats.queue_s,
                prefill_s=stats.prefill_s,
                decode_s=stats.decode_s,
                time_to_first_token_s=(self._first_token_s or now_s) - self._arrived_s,
                total_s=now_s - self._arrived_s,
            ),
            spec=self._spec if self._call.spec.return_stats else None,
        )

    async def _in_time(self, work: Awaitable[_ResultT]) -> _ResultT:
        """Await `work` until the caller's deadline; only awaits are timed, never a yield."""
        try:
            async with asyncio.timeout_at(self._call.deadline_s):
                return await work
        except TimeoutError as error:
            raise DeadlineExceeded("deadline: it passed before the request finished") from error


def _max_verify_len(spec: SpecOptions, ready: Ready) -> int | None:
    """The request's limit of drafted tokens a round; None leaves it to the target."""
    if spec.mode not in _MODES:
        raise InvalidField("spec.mode", f"{spec.mode[:64]!r} is not one of {', '.join(_MODES)}")
    if spec.mode not in ("auto", "off", ready.speculation):
        raise Unsupported(
            f"spec.mode: {spec.mode!r} is not what this service does ({ready.speculation})"
        )
    if spec.max_verify_len and spec.mode != "off" and ready.speculation == "off":
        raise Unsupported(f"spec.max_verify_len: {spec.max_verify_len} needs speculation (off)")
    return 0 if spec.mode == "off" else spec.max_verify_len
