# pyright: strict
"""Replicas of a service on Ray Serve: `serve run specserve.replicas:app replicas=2 flags="..."`.

A replica is a whole service on one machine, started as every other command starts one of its own,
and an actor of Ray's that passes HTTP requests on to it. Its topology is a placement group: the
devices, or cores, of all its processes are taken together or not at all. Balancing, scaling and
starting again are Ray's. Imported by nobody else; needs the `ray` extra.
"""

import argparse
import importlib
import logging
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import StreamingResponse

from specserve.commands.service_options import add_service_options, read_config
from specserve.errors import InvalidField, Unavailable, Unsupported
from specserve.processes.local_service import local_apis
from specserve.settings.config import Config
from specserve.settings.placing import wants_gpus
from specserve.settings.topology import parse_topology

_KEYS = ("replicas", "flags")
_LOOK_S = 1.0  # between looks at a replica
_HEALTH_S = 5.0  # that one may take
# Of one connection, and of the length that was before a proxy cut bodies anew.
_OWN_HEADERS = frozenset(
    {
        "connection", "content-length", "keep-alive", "proxy-authenticate", "te", "trailer",
        "proxy-authorization", "transfer-encoding", "upgrade",
    }
)  # fmt: skip


log = logging.getLogger(__name__)


class Bundle(NamedTuple):
    """What one replica takes of a machine."""

    num_cpus: int
    num_gpus: int

    @property
    def resources(self) -> dict[str, float]:
        """As Ray names them."""
        return {"CPU": float(self.num_cpus)} | ({"GPU": float(self.num_gpus)} if self[1] else {})


def bundle_of(config: Config, device: str) -> Bundle:
    """Of the configured topology, on cpu or cuda. Raises InvalidField for one of several nodes."""
    topology = parse_topology(config.topology.topology)
    if config.topology.nnodes > 1:
        problem = "a replica is on one machine; start such a service by specserve launch on each"
        raise InvalidField("topology.nnodes", problem)
    ranks, drafts = topology.num_target_ranks, topology.num_draft_processes
    if wants_gpus(device):
        return Bundle(ranks + drafts, ranks + drafts)
    threads = config.topology.threads
    return Bundle(ranks * threads + drafts * (config.speculation.draft_threads or threads), 0)


def config_of(flags: Sequence[str]) -> Config:
    """What the flags of `launch` say. Raises InvalidField."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    add_service_options(parser)
    try:
        arguments, strays = parser.parse_known_args(flags)
    except argparse.ArgumentError as error:
        raise InvalidField("flags", str(error)) from error
    if strays:
        raise InvalidField("flags", f"{strays[0]} is no flag of specserve launch")
    return read_config(arguments)


def app(given: Mapping[str, str]) -> Any:  # noqa: ANN401 - an Application of Ray Serve's
    """What `serve run` is to run: `replicas` of a service with the `flags` of `launch`.

    Raises InvalidField for what it does not know, Unsupported without Ray.
    """
    if unknown := sorted(given.keys() - set(_KEYS)):
        raise InvalidField(unknown[0], f"is not known here; type {' or '.join(_KEYS)}")
    try:
        num_replicas = int(given.get("replicas", "1"))
    except ValueError:
        num_replicas = 0
    if num_replicas < 1:
        raise InvalidField("replicas", f"{given['replicas']!r} is no number from 1")
    try:
        flags = shlex.split(given.get("flags", ""))
    except ValueError as error:
        raise InvalidField("flags", f"{error} in {given['flags']!r}") from error
    config = config_of(flags)
    ray, serve = _ray("ray"), _ray("ray.serve")
    if not ray.is_initialized():
        ray.init(address="auto")
    device = config.topology.device or _device(config, ray.cluster_resources())
    bundle = bundle_of(config, device)
    deployment = serve.deployment(
        Replica,
        name="specserve",
        num_replicas=num_replicas,
        max_ongoing_requests=config.server.max_queued_requests,
        ray_actor_options={"num_cpus": bundle.num_cpus, "num_gpus": bundle.num_gpus},
        placement_group_bundles=[bundle.resources],
        placement_group_strategy="STRICT_PACK",
        health_check_period_s=_LOOK_S,
        health_check_timeout_s=_HEALTH_S,
        graceful_shutdown_timeout_s=config.server.drain_timeout_s + _HEALTH_S,
    )
    return deployment.bind([*flags, "--device", device])


class Replica:
    """One service, and the way of requests to it."""

    def __init__(self, flags: Sequence[str]) -> None:
        """Starts it, and waits until it serves. Raises the SpecserveError that kept it from it."""
        self._service = ExitStack()
        self.url = self._service.enter_context(local_apis(flags, on_end=_leave)).http_url
        self._session: Any = None

    async def __call__(self, request: Request) -> StreamingResponse:
        """Pass one request on, and its answer back piece by piece.

        Host and Origin go along, so that pages of other hosts are kept out as by the service alone.
        """
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        answer = await self._connections().request(
            request.method,
            self.url + path,
            headers=_passed_on(request.headers),
            data=await request.body(),
            allow_redirects=False,
        )

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:
                answer.close()  # which ends the request where its client has gone

        headers = _passed_on(answer.headers)
        return StreamingResponse(pieces(), status_code=answer.status, headers=headers)

    async def check_health(self) -> None:
        """Ray starts a replica again that raises here, or does not answer."""
        async with self._connections().get(f"{self.url}/livez") as answer:
            if answer.status != 200:
                raise Unavailable(f"the service says {answer.status}")

    def __del__(self) -> None:
        """Ray drops a replica that it wants no more: the service drains."""
        self._service.close()

    def _connections(self) -> Any:  # noqa: ANN401 - a ClientSession of aiohttp's
        """Made in the loop that uses it."""
        if self._session is None:
            aiohttp = _ray("aiohttp")
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        return self._session


def _leave() -> None:
    """Of a replica whose service has ended: nobody is sent to what has gone.

    Ray sends requests to the others as soon as the actor is not there; what a look at its health
    says has to come three times first.
    """
    log.error("the service of this replica has ended")
    os._exit(1)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}


def _device(config: Config, resources: Mapping[str, float]) -> str:
    """cuda where the cluster has enough of them for one replica."""
    gpus = bundle_of(config, "cuda").num_gpus
    return "cuda" if resources.get("GPU", 0.0) >= gpus else "cpu"


def _ray(module: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unsupported("replicas need Ray Serve: pip install 'specserve[ray]'") from error
