"""A typed Python client of the gRPC API: `Client` blocks, `AsyncClient` awaits.

    from specserve.client import Client

    with Client("127.0.0.1:7411") as client:
        print(client.generate("def main():", max_tokens=32, temperature=0).text)
        for delta in client.stream("Once upon a time", max_tokens=32, seed=1):
            print(delta.text, end="")

Results are immutable records; every failure is a `specserve.errors.SpecserveError` whose `code`
is the gRPC status. Knows the public API only: it would serve as well against another machine.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, NoReturn, Self, Unpack

import grpc
import grpc.aio

from specserve.access import Access, unreached
from specserve.api import from_proto, to_proto
from specserve.api.call import ChatMessage, SpecOptions
from specserve.api.events import CompletedSample, Completion, Finished, PromptInfo, TokenDelta
from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.api.info import ModelInfo, ServerInfo, ServerLoad, SpecConfig, SpecStats
from specserve.api.tool_messages import tool_call_of
from specserve.client_request import Options, Prompt, request_of
from specserve.errors import Cancelled, SpecserveError, Unavailable, from_code

__all__ = [
    "AsyncClient", "ChatMessage", "Client", "CompletedSample", "Completion", "Options", "Prompt",
    "SpecOptions", "TextStream",
]  # fmt: skip

_CLOSED = "the client is closed"
_NO_STATS = "the service sent no statistics"


class TextStream:
    """Iterates over the deltas of one request; leaving it early cancels the request.

    `prompt` is known once the first delta is, `finished` once the iteration has ended.
    """

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - grpc does not type its calls
        self._call = call
        self.prompt: PromptInfo | None = None
        self.finished: Finished | None = None

    def __iter__(self) -> Iterator[TokenDelta]:
        try:
            for response in self._call:
                delta = self._take(response)
                if delta is not None:
                    yield delta
        except grpc.RpcError as error:
            raise _error_of(error) from error
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        try:
            async for response in self._call:
                delta = self._take(response)
                if delta is not None:
                    yield delta
        except grpc.RpcError as error:
            raise _error_of(error) from error
        except asyncio.CancelledError as error:
            _raise_cancelled(error)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Abort the request; harmless once it has ended."""
        self._call.cancel()

    def _take(self, response: pb.GenerateStreamResponse) -> TokenDelta | None:
        match response.WhichOneof("event"):
            case "token_delta":
                return from_proto.delta_of(response.token_delta)
            case "prompt":
                self.prompt = from_proto.merge_prompt(self.prompt, response.prompt)
            case "finished":
                self.finished = from_proto.finished_of(response.finished)
            case _:
                pass  # a kind of event that this version does not know
        return None


class Client:
    """Blocking client; safe to share between threads."""

    def __init__(
        self, address: str, *, api_key: str | None = None, tls_ca: str | None = None
    ) -> None:
        """`address` is host:port; the connection is made by the first call.

        `tls_ca`: see `specserve.access.Access`. Raises InvalidField for a file that is not there.
        """
        keyed = Access(address, api_key, tls_ca).channel()
        self._channel = keyed.channel
        self._generation = stubs.GenerationStub(keyed)
        self._control = stubs.ControlStub(keyed)
        self._spec_info = stubs.SpecInfoStub(keyed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is running and disconnect."""
        self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The whole answer, all samples; raises SpecserveError."""
        request, timeout_s = request_of(prompt, options)
        return _completion_of(_unary(self._generation.Generate, request, timeout_s))

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Iterate with `for`; errors, SpecserveError all, come from the iteration."""
        request, timeout_s = request_of(prompt, options)
        return TextStream(_unary(self._generation.GenerateStream, request, timeout_s))

    def server_info(self) -> ServerInfo:
        response = _unary(self._control.GetServerInfo, pb.GetServerInfoRequest())
        return from_proto.struct_of(response, ServerInfo)

    def model_info(self) -> ModelInfo:
        response = _unary(self._control.GetModelInfo, pb.GetModelInfoRequest())
        return from_proto.struct_of(response, ModelInfo)

    def load(self) -> ServerLoad:
        response = _unary(self._control.GetLoad, pb.GetLoadRequest())
        return from_proto.struct_of(response, ServerLoad)

    def spec_config(self) -> SpecConfig:
        response = _unary(self._spec_info.GetSpecConfig, pb.GetSpecConfigRequest())
        return from_proto.struct_of(response, SpecConfig)

    def spec_stats(self) -> SpecStats:
        """As they are now; `SpecInfo.WatchSpecStats` goes on telling."""
        call = _unary(self._spec_info.WatchSpecStats, pb.WatchSpecStatsRequest())
        try:
            return from_proto.struct_of(next(call), SpecStats)
        except grpc.RpcError as error:
            raise _error_of(error) from error
        except StopIteration as error:
            raise Unavailable(_NO_STATS) from error
        finally:
            call.cancel()

    def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ids are no error."""
        _unary(self._control.Abort, to_proto.abort_of(request_id))


class AsyncClient:
    """The same for asyncio; use it inside one running loop."""

    def __init__(
        self, address: str, *, api_key: str | None = None, tls_ca: str | None = None
    ) -> None:
        """As `Client` has it."""
        keyed = Access(address, api_key, tls_ca).aio_channel()
        self._channel = keyed.channel
        self._generation = stubs.GenerationStub(keyed)
        self._control = stubs.ControlStub(keyed)
        self._spec_info = stubs.SpecInfoStub(keyed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is running and disconnect."""
        await self._channel.close()

    async def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Completion:
        """The whole answer, all samples; raises SpecserveError."""
        request, timeout_s = request_of(prompt, options)
        return _completion_of(await _aio_unary(self._generation.Generate, request, timeout_s))

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> TextStream:
        """Iterate with `async for`; errors, SpecserveError all, come from the iteration."""
        request, timeout_s = request_of(prompt, options)
        try:
            return TextStream(self._generation.GenerateStream(request, timeout=timeout_s))
        except grpc.aio.UsageError as error:
            raise Unavailable(_CLOSED) from error

    async def server_info(self) -> ServerInfo:
        response = await _aio_unary(self._control.GetServerInfo, pb.GetServerInfoRequest())
        return from_proto.struct_of(response, ServerInfo)

    async def model_info(self) -> ModelInfo:
        response = await _aio_unary(self._control.GetModelInfo, pb.GetModelInfoRequest())
        return from_proto.struct_of(response, ModelInfo)

    async def load(self) -> ServerLoad:
        response = await _aio_unary(self._control.GetLoad, pb.GetLoadRequest())
        return from_proto.struct_of(response, ServerLoad)

    async def spec_config(self) -> SpecConfig:
        response = await _aio_unary(self._spec_info.GetSpecConfig, pb.GetSpecConfigRequest())
        return from_proto.struct_of(response, SpecConfig)

    async def spec_stats(self) -> SpecStats:
        """As they are now; `SpecInfo.WatchSpecStats` goes on telling."""
        try:
            call = self._spec_info.WatchSpecStats(pb.WatchSpecStatsRequest())
            async for response in call:
                call.cancel()
                return from_proto.struct_of(response, SpecStats)
        except grpc.RpcError as error:
            raise _error_of(error) from error
        except asyncio.CancelledError as error:
            _raise_cancelled(error)
        except grpc.aio.UsageError as error:
            raise Unavailable(_CLOSED) from error
        raise Unavailable(_NO_STATS)

    async def abort(self, request_id: str) -> None:
        """End a request wherever it is; unknown ids are no error."""
        await _aio_unary(self._control.Abort, to_proto.abort_of(request_id))


def _unary(method: Any, request: Any, timeout_s: float | None = None) -> Any:  # noqa: ANN401
    try:
        return method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise _error_of(error) from error
    except ValueError as error:  # grpc's word for a closed channel
        raise Unavailable(_CLOSED) from error


async def _aio_unary(method: Any, request: Any, timeout_s: float | None = None) -> Any:  # noqa: ANN401
    try:
        return await method(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise _error_of(error) from error
    except asyncio.CancelledError as error:
        _raise_cancelled(error)
    except grpc.aio.UsageError as error:
        raise Unavailable(_CLOSED) from error


def _raise_cancelled(error: asyncio.CancelledError) -> NoReturn:
    """`error` where the reader's task is cancelled; else the call was, which grpc tells alike."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    raise Cancelled("the call was cancelled here") from error


def _error_of(error: Any) -> SpecserveError:  # noqa: ANN401 - every RpcError of a call is a call
    details = error.details() or error.code().name
    if (advice := unreached(details)) is not None:
        return Unavailable(advice)
    return from_code(error.code().name, details)


def _completion_of(response: pb.GenerateResponse) -> Completion:
    finished = from_proto.finished_of(response.finished)
    samples: list[CompletedSample] = []
    for message, end in zip(response.samples, finished.samples, strict=True):
        whole = from_proto.sample_of(message)
        samples.append(
            CompletedSample(
                sample_index=end.sample_index,
                text=whole.text,
                token_ids=whole.token_ids,
                origins=whole.origins,
                logprobs=whole.logprobs,
                finish_reason=end.finish_reason,
                stop_string=end.stop_string,
                stop_token_id=end.stop_token_id,
                tool_calls=[tool_call_of(call) for call in message.tool_calls],
            )
        )
    return Completion(
        request_id=response.request_id,
        samples=samples,
        prompt=from_proto.prompt_info_of(response.prompt),
        usage=finished.usage,
        timings=finished.timings,
        spec=finished.spec,
    )
