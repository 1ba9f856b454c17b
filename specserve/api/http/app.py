# pyright: strict
"""All paths of the HTTP front end, and what is answered where there is none."""

import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specserve import __version__
from specserve.api.figure_names import renamed
from specserve.api.http.bodies import PLAIN, DetokenizeBody, TokenizeBody, read_body
from specserve.api.http.connection import Gone, read_content, refuse_unread, warning_of
from specserve.api.http.generation import ChatCompletions, Completions
from specserve.api.http.guard import KeyRequired, KnownHostRequired
from specserve.api.http.hosts import KnownHosts
from specserve.api.http.page import Page
from specserve.api.http.refusals import Refusal, Refused, refusal_of
from specserve.api.http.responses.asked_again import Cancellation, InputItems, OneResponse
from specserve.api.http.responses.endpoint import Responses
from specserve.api.http.responses.kept import Kept
from specserve.api.http.responses.store import Store, bounds_of
from specserve.api.http.to_calls import chat_options, messages_of
from specserve.api.http.wrong_paths import WrongPaths
from specserve.api.live_status import live_status
from specserve.api.service import Service
from specserve.errors import InvalidField, NotFound
from specserve.validation import check_token_ids

_SERVING = ("ready", "degraded")
_MODEL_TIME = 0  # `created` of a model; nobody knows when it was

Answer = Callable[[Request], Awaitable[Response]]


def make_app(service: Service) -> ASGIApp:
    """The ASGI application of `service`."""
    app = _Paths(service).app()
    if service.keys is not None:
        return KeyRequired(app, service.keys)
    return KnownHostRequired(app, KnownHosts(service.config.server.allowed_hosts))


class _Paths:
    """Answers of the paths that generate nothing."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_lenient = service.config.server.lenient
        self._page = Page()

    def app(self) -> Starlette:
        service, lenient = self._service, self._is_lenient
        kept = Store[Kept](bounds_of(service.config.server))
        one, cancellation, items = (
            kind(kept, service.tokenizer) for kind in (OneResponse, Cancellation, InputItems)
        )
        routes = [
            _posts("/v1/completions", Completions(service, is_lenient=lenient)),
            _posts("/v1/chat/completions", ChatCompletions(service, is_lenient=lenient)),
            _posts("/v1/responses", Responses(service, kept, is_lenient=lenient)),
            Route("/v1/responses/{response_id}", one, methods=["GET", "DELETE"]),
            _posts("/v1/responses/{response_id}/cancel", cancellation),
            Route("/v1/responses/{response_id}/input_items", items, methods=["GET"]),
            _answers("/v1/models", self.models),
            _answers("/v1/models/{name:path}", self.model),
            _answers("/tokenize", self.tokenize, "POST"),
            _answers("/detokenize", self.detokenize, "POST"),
            _answers("/health", self.ready),
            _answers("/readyz", self.ready),
            _answers("/livez", self.live),
            _answers("/version", self.version),
            _answers("/server_info", self.server_info),
            _answers("/metrics", self.metrics),
            _answers("/status", self.status),
            _answers("/", self.page),
        ]
        refuse = _refusing_paths(WrongPaths(routes))
        return Starlette(routes=routes, exception_handlers={HTTPException: refuse})

    async def models(self, request: Request) -> Response:
        """The one model that is served, in OpenAI's form, with its context."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """The same of one; 404 for another name."""
        self._require(request.path_params["name"])
        return _json(self._model())

    def _require(self, name: str | None) -> None:
        """Raises NotFound unless this model is served; None is any."""
        if name not in (None, served := self._service.ready.model):
            raise NotFound(f"model: {name[:64]!r} is not served here; {served!r} is")

    def _model(self) -> dict[str, Any]:
        ready = self._service.ready
        return {
            "id": ready.model,
            "object": "model",
            "created": _MODEL_TIME,
            "owned_by": "specserve",
            "root": ready.model,  # vLLM's clients ask for the model by it
            "parent": None,
            "max_model_len": ready.max_model_len,
        }

    async def tokenize(self, request: Request) -> Response:
        content = await self._content(request)
        lenient = self._is_lenient
        body, ignored = read_body(content, TokenizeBody, is_lenient=lenient, reading=PLAIN)
        self._require(body.model)
        tokenizer = self._service.tokenizer
        if (body.prompt is None) == (body.messages is None):
            raise InvalidField("prompt", "send one of prompt, messages")
        if body.prompt is not None:
            adds = body.add_special_tokens is not False
            ids = await tokenizer.encode(body.prompt, add_special_tokens=adds)
        elif body.add_special_tokens:
            raise InvalidField("add_special_tokens", "a chat has those that its template writes")
        else:
            ids = await tokenizer.encode_chat(messages_of(body.messages or []), chat_options(body))
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self._service.ready.max_model_len,
            "tokens": ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = await tokenizer.off_loop(
                lambda: [tokenizer.decode([token_id]) for token_id in ids]
            )
        return _json(answer, headers=warning_of(ignored))

    async def detokenize(self, request: Request) -> Response:
        content = await self._content(request)
        lenient = self._is_lenient
        body, ignored = read_body(content, DetokenizeBody, is_lenient=lenient, reading=PLAIN)
        self._require(body.model)
        check_token_ids("tokens", body.tokens, self._service.ready.vocab_size)
        tokenizer = self._service.tokenizer
        text = await tokenizer.off_loop(lambda: tokenizer.decode(body.tokens))
        return _json({"prompt": text}, headers=warning_of(ignored))

    async def live(self, request: Request) -> Response:
        """200 unless nothing is decoded any more: then it helps to start the service anew."""
        hub = self._service.hub
        if hub.lost.is_set() or hub.is_stalled:
            return _json({"status": self._service.state}, 503)
        return _json({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """200 while requests are served; a draft process that is missing costs speed alone."""
        state = self._service.state
        return _json({"status": state}, 200 if state in _SERVING else 503)

    async def version(self, request: Request) -> Response:
        """Of specserve."""
        return _json({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        """All counts, as Prometheus reads them."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def status(self, request: Request) -> Response:
        """What the page shows, while the service loads and drains, too."""
        return _json(live_status(self._service))

    async def page(self, request: Request) -> Response:
        """The page, which needs nothing but this server, and may ask for nothing else."""
        return Response(self._page.content, headers=self._page.headers, media_type="text/html")

    async def server_info(self, request: Request) -> Response:
        """State, topology, model and load."""
        service = self._service
        hub = service.hub
        return _json(
            {
                "version": __version__,
                "state": service.state,
                "api_uptime_s": time.monotonic() - service.started_s,
                "topology": service.config.topology.topology,
                "model": msgspec.to_builtins(service.ready),
                "num_in_flight": hub.num_in_flight,
                "load": renamed(msgspec.structs.asdict(hub.load)),
            }
        )

    async def _content(self, request: Request) -> bytes:
        limit = self._service.max_message_bytes
        return await read_content(request.scope, request.receive, limit)


class _Unread(Response):
    """To a request whose body was not read."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refuse_unread(self._refusal, receive, send)


def _posts(path: str, endpoint: ASGIApp) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _answers(path: str, answer: Answer, method: str = "GET") -> Route:
    """Errors become answers; nothing leaves untranslated."""

    @functools.wraps(answer)
    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except Gone:
            return Response()  # to nobody
        except Refused as error:
            return _Unread(error.refusal)
        except Exception as error:  # noqa: BLE001 - the boundary
            return _refused(refusal_of(error))

    return Route(path, answered, methods=[method])


def _refusing_paths(paths: WrongPaths) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = _refused(paths.refusal(request.method, request.url.path, error))
        response.headers.update(error.headers or {})  # Allow
        return response

    return refuse


def _refused(refusal: Refusal) -> Response:
    return Response(
        refusal.body,
        refusal.code,
        headers=refusal.headers,
        media_type="application/json",
    )


def _json(
    body: Any,  # noqa: ANN401 - what JSON holds
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
