"""The arm under test: a real `specserve launch`, spoken to over gRPC by the real client.

Every call has a prefix-cache salt of its own, so that no repetition finds the prompts of another.
"""

import asyncio
import itertools
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from bench.processes import ServiceProcesses
from bench.records import BatchTrace, GenerateJob
from specserve.api.info import ModelInfo, ServerInfo, ServerLoad
from specserve.client import AsyncClient
from specserve.processes.local_service import local_service


class Served:
    """One running service, and a client that stays connected."""

    def __init__(self, runner: asyncio.Runner, address: str) -> None:
        self._runner = runner
        self._client = runner.run(_connect(address))
        self._processes = ServiceProcesses()
        self._salts = itertools.count()
        self.model: ModelInfo = runner.run(self._client.model_info())
        self.server: ServerInfo = runner.run(self._client.server_info())

    def ask(self, job: GenerateJob) -> BatchTrace:
        """All prompts at once, each as a stream of its own."""
        return self._runner.run(self._batch(job))

    @property
    def allocator(self) -> dict[str, str]:
        """How the target's memory allocator is tuned; what is compared with it should have that."""
        return self._processes.environment("target", "GLIBC_TUNABLES")

    def load(self) -> ServerLoad:
        """What the service says about itself; `round_s` is its own average of a decode round."""
        return self._runner.run(self._client.load())

    def close(self) -> None:
        self._runner.run(self._client.close())

    async def _batch(self, job: GenerateJob) -> BatchTrace:
        salt, before = str(next(self._salts)), self._processes.usage()
        start_s = time.perf_counter()
        rows = await asyncio.gather(
            *(self._row(job, row, f"{salt}-{row}", start_s) for row in range(job.batch_size))
        )
        total_s = time.perf_counter() - start_s
        after = self._processes.usage()
        return BatchTrace(
            arrivals_s=[arrivals for arrivals, _ in rows],
            token_ids=[token_ids for _, token_ids in rows],
            total_s=total_s,
            usage={role: after[role].since(before[role]) for role in after},
        )

    async def _row(
        self, job: GenerateJob, row: int, salt: str, start_s: float
    ) -> tuple[list[float], list[int]]:
        arrivals_s: list[float] = []
        token_ids: list[int] = []
        stream = self._client.stream(
            job.prompts[row],
            max_tokens=job.num_tokens,
            temperature=job.temperature,
            ignore_eos=True,
            seed=row,
            cache_salt=salt,
        )
        async for delta in stream:
            arrivals_s += [time.perf_counter() - start_s] * len(delta.token_ids)
            token_ids += delta.token_ids
        return arrivals_s, token_ids


async def _connect(address: str) -> AsyncClient:
    return AsyncClient(address)  # inside the loop that will use it


@contextmanager
def serve(flags: Sequence[str]) -> Generator[Served]:
    """Start a service with the flags of `launch`, connect, and stop it in the end."""
    with local_service(flags) as address, asyncio.Runner() as runner:
        served = Served(runner, address)
        try:
            yield served
        finally:
            served.close()
