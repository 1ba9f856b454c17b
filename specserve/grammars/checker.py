# pyright: strict
"""Grammars at the door: refused here is what cannot be compiled, or takes too much of anything.

The compiler is a library of machine code that clients' texts are put into. It works in a process of
its own, which is started by the first request that has a grammar: one that exhausts its stack or
its time ends, its request is refused, and the next one gets another. What was found good is
remembered.
"""

import asyncio
import hashlib
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import msgspec

from specserve.errors import InvalidField, SpecserveError, Unsupported
from specserve.grammars.compiler import Vocabulary
from specserve.grammars.source import MAX_CHARS
from specserve.types import Grammar

LIMIT_S = 1.0  # of a processor, for one grammar
_PATIENCE = 30.0  # times as long, where others have the processor
_START_S = 60.0  # for the process to read the vocabulary
_NUM_KNOWN = 1024  # grammars
_HINT = "make it smaller: fewer alternatives, shorter repetitions, no multipleOf of large numbers"


class _Verdict(msgspec.Struct, frozen=True):
    problem: str = ""
    is_defect: bool = False


class GrammarChecker:
    """Use inside a running loop."""

    def __init__(self, vocabulary: Callable[[], Vocabulary], limit_s: float = LIMIT_S) -> None:
        """`vocabulary` of the served model is asked for with the first grammar."""
        self._vocabulary = vocabulary
        self._limit_s = limit_s
        self._child: asyncio.subprocess.Process | None = None
        self._leaving: set[asyncio.Task[object]] = set()  # ends of processes given up
        self._turn = asyncio.Lock()  # one at a time
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, grammar: Grammar) -> None:
        """Raises InvalidField for a grammar that cannot be served, Unsupported where none can."""
        if len(grammar.text) > MAX_CHARS:
            problem = f"has {len(grammar.text)} characters; the limit is {MAX_CHARS}"
            raise InvalidField(grammar.field, problem)
        name = hashlib.sha256(f"{grammar.kind} {grammar.text}".encode(errors="replace")).digest()
        if name in self._known:
            self._known.move_to_end(name)
            return
        async with self._turn:
            try:
                verdict = await self._asked(grammar)
            except BaseException:
                self._abandon()
                raise
        if verdict.is_defect:
            raise Unsupported(f"{grammar.field}: is not served here: {verdict.problem}")
        if verdict.problem:
            raise InvalidField(grammar.field, verdict.problem)
        self._known[name] = None
        if len(self._known) > _NUM_KNOWN:
            self._known.popitem(last=False)

    async def _asked(self, grammar: Grammar) -> _Verdict:
        if self._child is None or self._child.returncode is not None:
            await self.close()
            self._child = await self._start()
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(_START_S + self._limit_s * _PATIENCE):
                child.stdin.write(msgspec.json.encode(grammar) + b"\n")
                await child.stdin.drain()
                answer = await child.stdout.readline()
        except TimeoutError:
            self._kill()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended, as it does without an answer
        if answer:
            return msgspec.json.decode(answer, type=_Verdict)
        await child.communicate()
        if child.returncode not in (-signal.SIGPROF, -signal.SIGKILL, -signal.SIGSEGV):
            raise SpecserveError(f"the compiler of grammars ended with {child.returncode}")
        limit = f"takes more than {self._limit_s:g} s or 32 MiB of stack to compile"
        return _Verdict(f"{limit}; {_HINT}")

    async def _start(self) -> asyncio.subprocess.Process:
        task = {"limit_s": self._limit_s, "vocabulary": self._vocabulary()}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "specserve.grammars.checking", msgspec.json.encode(task).decode(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**20,
        )  # fmt: skip

    def _kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.kill()

    def _abandon(self) -> None:
        """Whoever asked has left, and an answer would be taken for that of the next one."""
        self._kill()
        if (child := self._child) is not None:
            self._child = None
            self._leaving.add(ending := asyncio.create_task(child.communicate()))
            ending.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """End the process, if there is one, and what is left of it and others."""
        self._kill()
        if self._child is not None:
            await self._child.communicate()
        await asyncio.gather(*self._leaving)
