# pyright: strict
"""A running engine of any kind, asked the same way: HTTP servers, workers, and specserve itself.

All are child processes on the cores that they are given.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from bench.peers.http_client import CompletionsClient, together
from bench.peers.records import Answer, Call, Job
from bench.processes import descendants
from specserve.client import AsyncClient
from specserve.errors import Failed
from specserve.processes.local_service import local_service
from specserve.processes.stop_signals import stops_deferred

# vLLM compiles the model when it starts for the first time, minutes on a busy machine.
_START_TIMEOUT_S = 1800.0
_STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.5
_STOPPED_EVERY_S = 0.05
_SHOWN_LINES = 3  # of a log, for a server that does not start
_DRAFT_TIMEOUT_S = 60.0


class Engine(Protocol):
    """What a measurement needs of an arm."""

    pids: Collection[int]  # its processes

    def ask(self, job: Job) -> Call: ...


@contextmanager
def pinned(cores: Collection[int]) -> Generator[None]:
    """This thread, and every process that it starts meanwhile, has these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """A process of a peer and its descendants; its output goes to a log file."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        cores: Collection[int],
        log: Path,
        *,
        is_worker: bool = False,
    ) -> None:
        """A worker is spoken to over pipes."""
        self.log = log
        pipe = subprocess.PIPE if is_worker else None
        log.parent.mkdir(parents=True, exist_ok=True)
        with pinned(cores), log.open("wb") as file:
            self.process = subprocess.Popen(
                words,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or file,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C is for the bench, which then stops it
            )

    def is_running(self) -> bool:
        return self.process.poll() is None

    def failure(self) -> Failed:
        """Why it did not answer, in the last words of its log."""
        try:
            end = f"ended with {self.process.wait(_STOP_TIMEOUT_S)}"
        except subprocess.TimeoutExpired:
            end = "says nothing more"
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = " | ".join([line.strip() for line in lines if line.strip()][-_SHOWN_LINES:])
        return Failed(f"{end}: {said}")

    def stop(self) -> None:
        """It and all that it started; killed where they do not end by themselves."""
        with stops_deferred():
            self.process.terminate()
            give_up_s = time.monotonic() + _STOP_TIMEOUT_S
            # Killed at once, what it started would leave shared memory behind.
            while self._signal_all(0) and time.monotonic() < give_up_s:
                self.is_running()  # one that has ended is there until it is asked for
                time.sleep(_STOPPED_EVERY_S)
            self._signal_all(signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass  # what it was told last it has never read

    def _signal_all(self, signum: int) -> bool:
        """Whether any process of its group was there to get it."""
        try:
            os.killpg(self.process.pid, signum)
        except ProcessLookupError:
            return False
        return True


class HttpEngine:
    """An OpenAI server."""

    def __init__(self, runner: asyncio.Runner, client: CompletionsClient) -> None:
        self.pids: Collection[int] = ()
        self._runner = runner
        self._client = client

    def ask(self, job: Job) -> Call:
        return self._runner.run(self._client.ask(job))

    def wait_until_ready(self, child: Child) -> None:
        """Raises Failed where the server ends, or does not begin to answer."""
        give_up_s = time.monotonic() + _START_TIMEOUT_S
        while not self._runner.run(self._client.is_ready()):
            if not child.is_running():
                raise child.failure()
            if time.monotonic() > give_up_s:
                raise Failed(f"did not start within {_START_TIMEOUT_S:.0f} s; see {child.log}")
            time.sleep(_LOOK_EVERY_S)


@contextmanager
def http_engine(
    runner: asyncio.Runner, client: CompletionsClient, child: Child
) -> Generator[Engine]:
    """The server that `child` is, once it answers; stopped in the end."""
    before = descendants()
    try:
        engine = HttpEngine(runner, client)
        engine.wait_until_ready(child)
        engine.pids = descendants() - before | {child.process.pid}
        yield engine
    finally:
        child.stop()


class WorkerEngine:
    """transformers, which has no server: lines of JSON to a process and back."""

    def __init__(self, child: Child, *, is_assisted: bool) -> None:
        self.pids: Collection[int] = {child.process.pid}
        self._child = child
        self._is_assisted = is_assisted

    def ask(self, job: Job) -> Call:
        wish = {**msgspec.to_builtins(job), "is_assisted": self._is_assisted}
        return msgspec.json.decode(worker_reply(self._child, wish), type=Call)


def worker_reply(child: Child, wish: Mapping[str, object]) -> bytes:
    """Raises Failed where the worker has ended instead."""
    stdin, stdout = child.process.stdin, child.process.stdout
    assert stdin is not None
    assert stdout is not None
    try:
        stdin.write(json.dumps(wish).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
    except BrokenPipeError:
        line = b""
    if not line:
        raise child.failure()
    return line


class ServiceEngine:
    """specserve, asked over gRPC by its own client."""

    def __init__(self, runner: asyncio.Runner, address: str, pids: Collection[int]) -> None:
        self.pids = pids
        self._runner = runner
        self._salts = itertools.count()
        self._client = runner.run(_connect(address))

    def ask(self, job: Job) -> Call:
        return self._runner.run(self._ask(job))

    def await_draft(self) -> None:
        """Raises Failed where the draft process does not attach."""
        self._runner.run(self._await_draft())

    def close(self) -> None:
        self._runner.run(self._client.close())

    async def _await_draft(self) -> None:
        give_up_s = time.monotonic() + _DRAFT_TIMEOUT_S
        while not (await self._client.load()).num_drafts_attached:
            if time.monotonic() > give_up_s:
                raise Failed("the draft process does not attach")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _ask(self, job: Job) -> Call:
        salt, start_s = next(self._salts), time.perf_counter()
        rows = (
            streamed(self._client, prompt, job.num_tokens, f"{salt}-{row}", start_s)
            for row, prompt in enumerate(job.prompts)
        )
        answers = await together(rows)
        return Call(answers=answers, total_s=time.perf_counter() - start_s)


async def streamed(
    client: AsyncClient, prompt: list[int], num_tokens: int, salt: str, start_s: float
) -> Answer:
    """A greedy answer of `num_tokens` over gRPC. Raises Failed for one of another length.

    A salt of its own keeps it from finding earlier prompts in the prefix cache.
    """
    stream = client.stream(
        prompt, max_tokens=num_tokens, temperature=0, ignore_eos=True, cache_salt=salt
    )
    texts: list[str] = []
    first_token_s, counted = 0.0, 0
    async for delta in stream:
        first_token_s = first_token_s or time.perf_counter() - start_s
        texts.append(delta.text)
        counted += len(delta.token_ids)
    if counted != num_tokens:
        raise Failed(f"an answer of {counted} tokens, not of {num_tokens}")
    return Answer(first_token_s=first_token_s, num_tokens=counted, text="".join(texts))


async def _connect(address: str) -> AsyncClient:
    return AsyncClient(address)  # inside the loop that will use it


@contextmanager
def service_engine(
    runner: asyncio.Runner, flags: Sequence[str], cores: Collection[int], *, has_draft: bool
) -> Generator[Engine]:
    """A `specserve launch` on these cores, stopped in the end."""
    before = descendants()
    with ExitStack() as stack:
        with pinned(cores):
            address = stack.enter_context(local_service(flags))
        engine = ServiceEngine(runner, address, descendants() - before)
        stack.callback(engine.close)
        if has_draft:
            engine.await_draft()
        yield engine
