# pyright: strict
"""The same prompts over gRPC and over HTTP, of one service, from one process. Times are seconds."""

import asyncio
import itertools
import time
from collections.abc import Collection

import msgspec

from bench.peers.engines import streamed
from bench.peers.http_client import CompletionsClient, together
from bench.peers.records import Call, Job
from bench.processes import ServiceProcesses
from specserve.client import AsyncClient

GRPC, HTTP = "grpc", "http"
APIS = (GRPC, HTTP)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one API; calls of one pass had the same prompts."""

    api: str
    pass_number: int
    call: Call
    api_ran_s: float  # processor time of the API process
    client_ran_s: float  # and of this one
    target_ran_s: float  # of the target
    target_waited_s: float  # that the target was ready and had no core: others' doing

    @property
    def num_tokens(self) -> int:
        return sum(answer.num_tokens for answer in self.call.answers)

    @property
    def own_tokens_per_s(self) -> float:
        """Over the time in which the target ran, or slept for want of something to do."""
        return self.num_tokens / (self.call.total_s - self.target_waited_s)


class Asked:
    """One running service, by both of its APIs."""

    def __init__(
        self, runner: asyncio.Runner, address: str, port: int, pids: Collection[int]
    ) -> None:
        """`port` is that of HTTP; `pids` are the service's processes."""
        self._runner = runner
        self._port = port
        self._client = runner.run(_connect(address))
        self._processes = ServiceProcesses(pids)
        self._salts = itertools.count()  # nothing is found in the prefix cache

    def close(self) -> None:
        self._runner.run(self._client.close())

    def ask(self, api: str, pass_number: int, job: Job) -> Measurement:
        """All prompts of `job` at once over one API. Raises Failed for answers that are short."""
        before = self._processes.usage()
        salt = f"{next(self._salts)}"
        if api == GRPC:
            call = self._runner.run(self._over_grpc(job, salt))
        else:
            client = CompletionsClient(self._port, {"cache_salt": salt})
            call = self._runner.run(client.ask(job))
        after = self._processes.usage()
        used = {role: after[role].since(before[role]) for role in after}
        return Measurement(
            api=api,
            pass_number=pass_number,
            call=call,
            api_ran_s=used["api"].ran_s,
            client_ran_s=used["client"].ran_s,
            target_ran_s=used["target"].ran_s,
            target_waited_s=used["target"].waited_s,
        )

    async def _over_grpc(self, job: Job, salt: str) -> Call:
        start_s = time.perf_counter()
        streams = (
            streamed(self._client, each, job.num_tokens, salt, start_s) for each in job.prompts
        )
        answers = await together(streams)
        return Call(answers=answers, total_s=time.perf_counter() - start_s)


async def _connect(address: str) -> AsyncClient:
    return AsyncClient(address)  # inside the loop that will use it
