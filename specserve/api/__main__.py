"""The API process: `python -m specserve.api`, started by the launcher, not for hands.

Binds its port before the target has loaded, so that one in use is told early; says ready once the
target is. SIGTERM drains and exits with 0; a second one ends the drain, with 3 if that cut
requests. One JSON line on stdin (`{"event": "target_lost", "detail": ...}`) ends every open stream
with an error.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from specserve.api.http.server import HttpServer
from specserve.api.hub import TargetSilent
from specserve.api.log_floods import dam_log_floods
from specserve.api.sampling_defaults import sampling_defaults
from specserve.api.server import GrpcServer
from specserve.api.service import Service
from specserve.api.stats_log import log_figures
from specserve.api.tokenizer import TextTokenizer
from specserve.errors import SpecserveError, Unsupported
from specserve.processes.process import (
    die_with_parent,
    parse_child_arguments,
    pin,
    report_failure,
    report_ready,
    share_heap,
)
from specserve.settings.config import ResolvedConfig, read_resolved
from specserve.telemetry import setup_logging

log = logging.getLogger(__name__)


_EXIT_CUT = 3  # a second signal cut requests


class SupervisorEvent(msgspec.Struct, frozen=True):
    """One line of stdin."""

    event: str
    detail: str = ""


async def serve(config: ResolvedConfig, control_dir: Path, ready_fd: int) -> int:
    """Serve until a signal, then drain; the exit code. Raises if it cannot start."""
    if config.model.target is None:
        raise Unsupported("model.target: is not resolved to a folder")
    stop_requests = _stop_requests()
    folder = Path(config.model.target)
    defaults = sampling_defaults(folder, config.model.generation_config)
    tokenizer = TextTokenizer(folder, config.model.tool_call_parser)
    if tokenizer.has_chat_template:
        log.info("tool calls: %s", tokenizer.tool_calling.description)
    service = Service(config, control_dir, tokenizer, defaults)
    server = GrpcServer(service)
    http_port = config.server.http_port_wish
    http = None if http_port is None else HttpServer(service, http_port)
    await server.start()
    if http is not None:
        await http.start()
    tasks = [asyncio.create_task(_listen(service), name="stdin")]
    if interval_s := config.telemetry.log_interval_s:
        tasks.append(asyncio.create_task(log_figures(service.hub, interval_s), name="figures"))
    try:
        if not await _unless(stop_requests.get(), service.until_ready()):
            return 0
        http_url = "" if http is None else http.url
        report_ready(ready_fd, address=server.address, http_url=http_url)
        await _unless(stop_requests.get(), server.failed())
        is_whole = await _unless(stop_requests.get(), service.drain(config.server.drain_timeout_s))
        return 0 if is_whole or not service.hub.num_in_flight else _EXIT_CUT
    finally:
        for task in tasks:
            task.cancel()
        service.hub.shut_down()
        if http is not None:
            await http.stop()
        await server.stop()


def _stop_requests() -> asyncio.Queue[int]:
    """SIGTERM and SIGINT, one entry each."""
    requests: asyncio.Queue[int] = asyncio.Queue()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, requests.put_nowait, signum)
    return requests


async def _unless(
    interruption: Coroutine[Any, Any, object], work: Coroutine[Any, Any, object]
) -> bool:
    """Do `work` unless interrupted; True if it was done and not interrupted in the same turn.

    Raises what it raised.
    """
    interrupted, done = asyncio.create_task(interruption), asyncio.create_task(work)
    await asyncio.wait((interrupted, done), return_when=asyncio.FIRST_COMPLETED)
    was_interrupted = interrupted.done()
    interrupted.cancel()
    if done.done():
        done.result()
    else:
        done.cancel()
    return not was_interrupted


async def _listen(service: Service) -> None:
    """Follow the supervisor's lines on stdin. Its end means nothing: the kernel reports deaths."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    except ValueError:
        return  # a file or /dev/null: started by hand
    async for line in reader:
        handle_line(service, line)


def handle_line(service: Service, line: bytes) -> None:
    """Act on one line of the supervisor's."""
    try:
        heard = msgspec.json.decode(line, type=SupervisorEvent)
    except msgspec.DecodeError:
        log.warning("not understood on stdin: %r", line[:200])
        return
    if heard.event == "target_lost":
        service.hub.target_lost(heard.detail)


def main() -> int:
    """The exit code: that of `serve`, 1 if it could not start or had to give up."""
    arguments = parse_child_arguments()
    die_with_parent(arguments.parent_pid)
    share_heap()
    setup_logging("api")
    try:
        config = read_resolved(arguments.config)
        setup_logging("api", config.telemetry.log_level)
        dam_log_floods()
        pin(config.placement("api"))
        return asyncio.run(serve(config, arguments.control_dir, arguments.ready_fd))
    except TargetSilent as error:
        report_failure(arguments.ready_fd, error, is_consequence=True)
        return 1
    except (SpecserveError, KeyError, OSError, msgspec.DecodeError) as error:
        report_failure(arguments.ready_fd, error)
        return 1
    except Exception as error:
        report_failure(arguments.ready_fd, f"API process failed: {type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    sys.exit(main())
