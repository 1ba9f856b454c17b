# pyright: strict
"""Many requests to one service at once, and how far they are."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from specserve.access import Access
from specserve.api.call import SpecOptions
from specserve.api.events import Completion
from specserve.audit.report import Served
from specserve.client import AsyncClient, Options, Prompt

_T = TypeVar("_T")
_MAX_AT_ONCE = 16  # requests
PLAIN = SpecOptions(mode="off")
# What nobody asks for here, a model's own file may want otherwise.
_NEUTRAL: Options = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


class Progress(Protocol):
    """Where an audit tells how far it is."""

    def begin(self, text: str, total: int | None = None) -> Callable[[], None]:
        """A stage of `total` steps starts; call what is returned after each of them."""
        ...


class Asker:
    """One service, asked by several requests at a time; for use inside one event loop."""

    def __init__(self, access: Access, progress: Progress) -> None:
        """Raises InvalidField for a file of `access` that cannot be read."""
        self._client = AsyncClient(access.address, api_key=access.api_key, tls_ca=access.tls_ca)
        self._progress = progress

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def generate(self, prompt: Prompt, options: Options, spec: SpecOptions) -> Completion:
        return await self._client.generate(prompt, **{**_NEUTRAL, **options, "spec": spec})

    async def all_of(self, text: str, work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        """The results of all, in order; `text` is what people are told meanwhile."""
        gate = asyncio.Semaphore(_MAX_AT_ONCE)
        step = self._progress.begin(text, len(work))

        async def one(asked: Coroutine[Any, Any, _T]) -> _T:
            try:
                async with gate:
                    result = await asked
            finally:
                asked.close()  # cancelled while it waited for its turn: it will never run
            step()
            return result

        return await asyncio.gather(*(one(asked) for asked in work))

    async def max_logprobs(self) -> int:
        """How many alternatives a request may ask for. Raises SpecserveError."""
        return (await self._client.server_info()).limits.max_logprobs

    async def served(self) -> Served:
        """What the service says of its model and its speculation. Raises SpecserveError."""
        model, speculation = await self._client.model_info(), await self._client.spec_config()
        return Served(
            model=model.model,
            deterministic=model.deterministic,
            speculation=speculation.mode,
            drafter=speculation.drafter,
            verification=speculation.verification,
            gamma=speculation.gamma,
        )
