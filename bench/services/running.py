# pyright: strict
"""One running service among several, and a client that stays connected to it.

Only the service that is asked works; the others look for work now and then.
"""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from bench.processes import ServiceProcesses, Usage, children_of, descendants
from bench.services.counters import CounterReader, Counters, rise
from bench.services.machine_load import ForeignLoad
from bench.services.records import Delta, Job, RowTrace, Trace
from bench.services.service import Service
from specserve.client import AsyncClient, Options
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.processes.local_service import local_service
from specserve.settings.resolve import kv_bytes_per_token
from specserve.types import TokenOrigin

T = TypeVar("T")
_ATTACH_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.1  # seldom: it is done beside what is measured
_MIB = 2**20
_LEAST_KV_MIB = 256  # several services share the machine, so that none may take what is free


class Running:
    """A service that was launched."""

    def __init__(
        self, runner: asyncio.Runner, address: str, pids: Collection[int], *, has_draft: bool
    ) -> None:
        """`pids`: the service's processes."""
        self._runner = runner
        self._pids = pids
        self._processes = ServiceProcesses(pids)
        self._salts = itertools.count()
        self._client, self._counters = runner.run(_connect(address))
        self.own: Collection[int] = ()  # all processes of ours, those of other services included
        self._num_tokens = 0.0  # generated since its start
        if has_draft:
            runner.run(self._await_draft())

    def draft_pids(self) -> set[int]:
        """Its draft processes now, whenever they were started."""
        return children_of(self._pids, "draft")

    def watch(
        self,
        asking: Callable[[AsyncClient], Coroutine[Any, Any, T]],
        num_tokens: Callable[[T], int],
    ) -> tuple[T, Counters, float]:
        """What `asking` returns of the connected client, the rise of counters, others' share.

        `num_tokens`: how many the service generated for it. The share is of a core.
        """
        return self._runner.run(self._watched(asking, num_tokens))

    def ask(self, job: Job) -> Trace:
        """All prompts at once, each as a stream of its own."""
        return self._runner.run(self._ask(job))

    def ask_without(self, gone: Collection[int], job: Job) -> tuple[Trace, float]:
        """Like `ask`, while the draft processes `gone` do not serve; after how long another does.

        Seconds from now. Raises OSError where none comes.
        """
        return self._runner.run(self._ask_without(gone, job))

    def close(self) -> None:
        self._runner.run(self._client.close())

    async def _await_draft(self, gone: Collection[int] = ()) -> float:
        """Seconds until one is attached that is none of `gone`."""
        start_s = time.monotonic()
        while not await self._has_draft(gone):
            if time.monotonic() > start_s + _ATTACH_TIMEOUT_S:
                raise OSError("the draft process does not attach")
            await asyncio.sleep(_LOOK_EVERY_S)
        return time.monotonic() - start_s

    async def _has_draft(self, gone: Collection[int]) -> bool:
        """A killed draft counts as attached until the target has noticed."""
        pids = self.draft_pids()
        is_another = bool(pids) and pids.isdisjoint(gone)
        return is_another and (await self._client.load()).num_drafts_attached > 0

    async def _ask_without(self, gone: Collection[int], job: Job) -> tuple[Trace, float]:
        trace, back_s = await asyncio.gather(self._ask(job), self._await_draft(gone))
        return trace, back_s

    async def _ask(self, job: Job) -> Trace:
        batch = _Batch(self._client, self._processes, job)

        async def run(client: AsyncClient) -> tuple[list[RowTrace], dict[str, Usage]]:
            return await batch.run(str(next(self._salts))), self._processes.usage()

        (rows, used), counters, foreign_share = await self._watched(
            run, lambda found: sum(len(row.token_ids) for row in found[0])
        )
        return Trace(
            rows=rows,
            usage={role: used[role].since(batch.usage[role]) for role in used},
            counters=counters,
            foreign_share=foreign_share,
        )

    async def _watched(
        self,
        asking: Callable[[AsyncClient], Coroutine[Any, Any, T]],
        num_tokens: Callable[[T], int],
    ) -> tuple[T, Counters, float]:
        before, load = await self._counters.read(), ForeignLoad(self.own)
        found = await asking(self._client)
        foreign_share = load.share()
        self._num_tokens += num_tokens(found)
        after = await self._counters.read_after(self._num_tokens)
        return found, rise(after, before), foreign_share


class _Batch:
    """The streams of one job. `usage` is read when the last row has its first token."""

    def __init__(self, client: AsyncClient, processes: ServiceProcesses, job: Job) -> None:
        self.usage: dict[str, Usage] = {}
        self._client = client
        self._processes = processes
        self._job = job
        self._num_silent = len(job.prompts)
        self._start_s = 0.0

    async def run(self, salt: str) -> list[RowTrace]:
        """A salt of its own keeps it from finding prompts of other jobs in the prefix cache."""
        self._start_s = time.perf_counter()
        rows = range(len(self._job.prompts))
        return await asyncio.gather(*(self._row(row, f"{salt}-{row}") for row in rows))

    async def _row(self, row: int, salt: str) -> RowTrace:
        job = self._job
        options: Options = {
            "max_tokens": job.num_tokens,
            "temperature": job.temperature,
            "ignore_eos": job.ignore_eos,
            "seed": None if job.seeds is None else job.seeds[row],
            "cache_salt": salt,
            "grammar": job.grammar,
        }
        options.update(cast(Options, job.sampling))
        stream = self._client.stream(job.prompts[row], **options)
        deltas: list[Delta] = []
        token_ids: list[int] = []
        async for delta in stream:
            at_s = time.perf_counter() - self._start_s
            is_speculative = any(origin is not TokenOrigin.PLAIN for origin in delta.origins)
            deltas.append(Delta(at_s, len(delta.token_ids), is_speculative, delta.cache_hit))
            token_ids += delta.token_ids
            if len(deltas) == 1:
                self._heard()
        return RowTrace(deltas=deltas, token_ids=token_ids)

    def _heard(self) -> None:
        self._num_silent -= 1
        if not self._num_silent:
            self.usage = self._processes.usage()


async def _connect(address: str) -> tuple[AsyncClient, CounterReader]:
    client = AsyncClient(address)  # inside the loop that will use it
    return client, CounterReader(client)


def kv_memory_flags(
    target: Path, ballast: int, num_tokens: int, *, spare: float = 2.0
) -> list[str]:
    """A KV pool for `spare` times `num_tokens` tokens, of the target padded to `ballast`.

    The context is no longer than that, of which a launch would warn.
    """
    spec = with_ballast(read_spec(target), ballast)
    room = math.ceil(spare * num_tokens)
    wanted = room * kv_bytes_per_token(spec, dtype="float32")
    longest = min(spec.max_position_embeddings, room)
    pool = f"{max(_LEAST_KV_MIB, -(-wanted // _MIB))}MiB"
    return ["--kv-memory", pool, "--max-model-len", str(longest)]


@contextmanager
def running(
    services: Sequence[Service], flags: Sequence[str], runner: asyncio.Runner
) -> Generator[dict[Service, Running]]:
    """Launch services one after the other, and stop them in the end.

    `flags` are for all of them.
    """
    with ExitStack() as stack:
        launched: list[tuple[Service, str, set[int]]] = []
        for service in services:
            before = descendants()
            address = stack.enter_context(local_service([*flags, *service.flags]))
            launched.append((service, address, descendants() - before))
        # Connections come last: processes are started while no thread of gRPC is there.
        found: dict[Service, Running] = {}
        for service, address, pids in launched:
            has_draft = service.has_draft_process
            found[service] = Running(runner, address, pids, has_draft=has_draft)
            stack.callback(found[service].close)
        own = descendants()
        for one in found.values():
            one.own = own
        yield found
