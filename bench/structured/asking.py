# pyright: strict
"""Seeded requests for answers in a form, asked of one service, several at a time."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from bench.structured.forms import FORMS, Form
from specserve.api.call import ChatMessage, SpecOptions
from specserve.client import AsyncClient, Options, Prompt
from specserve.types import FinishReason

# As many as have no divisor in common with the number of forms: each form meets each of them.
SAMPLINGS: tuple[Options, ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 40, "min_tokens": 12},
    {"temperature": 1.3, "repetition_penalty": 1.1, "presence_penalty": 0.3},
)


_STATS = SpecOptions(return_stats=True)


class Asked(msgspec.Struct, frozen=True):
    """Request number `number`, which is its seed as well."""

    number: int

    @property
    def form(self) -> Form:
        return FORMS[self.number % len(FORMS)]

    @property
    def sampling(self) -> Options:
        return SAMPLINGS[self.number % len(SAMPLINGS)]

    def prompt(self, *, is_chat: bool) -> Prompt:
        text = f"Request {self.number}. {self.form.told}"
        return [ChatMessage("user", text)] if is_chat else f"{text}\n"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What came back; `num_drafts` rounds verified drafted tokens."""

    number: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    num_drafts: int
    num_accepted: int


async def ask_all(
    address: str,
    requests: Sequence[Asked],
    *,
    at_once: int,
    max_tokens: int,
    is_chat: bool,
    advance: Callable[[str], None],
) -> list[Answered]:
    """In the order of `requests`. Raises the SpecserveError of the first that fails."""
    gate = asyncio.Semaphore(at_once)

    async with AsyncClient(address) as client:

        async def one(asked: Asked) -> Answered:
            async with gate:
                advance(f"request {asked.number}, {asked.form.name}")
                options: Options = {"max_tokens": max_tokens, "seed": asked.number, "spec": _STATS}
                options.update(asked.sampling)
                options["grammar"] = asked.form.grammar
                found = await client.generate(asked.prompt(is_chat=is_chat), **options)
            (sample,), spec = found.samples, found.spec
            return Answered(
                number=asked.number,
                text=sample.text,
                token_ids=sample.token_ids,
                finish_reason=sample.finish_reason,
                num_drafts=0 if spec is None else spec.num_drafts,
                num_accepted=0 if spec is None else spec.num_accepted_tokens,
            )

        return await asyncio.gather(*map(one, requests))
