# pyright: strict
"""`specserve launch`: print what was decided, serve, end with a meaningful exit code."""

import argparse
import logging
import signal
import socket

import msgspec

from specserve.commands.config_table import config_rows, print_config, telling_rows
from specserve.commands.device_remark import device_remark
from specserve.commands.faster_drafter import faster_drafter_remark
from specserve.commands.remarks import (
    ballast_remark,
    context_remark,
    draft_node_remark,
    dtype_remark,
    link_remark,
    memory_remark,
    no_drafter_remark,
    target_remark,
    unused_remark,
)
from specserve.commands.service_options import add_service_options, read_config
from specserve.errors import SpecserveError, Unavailable
from specserve.processes.hosts.meeting import Meeting
from specserve.processes.launch import launch, require_free_ports, resolve_here
from specserve.processes.process import (
    ReadyReport,
    die_with_parent,
    report_failure,
    report_ready,
)
from specserve.processes.run_dir import runtime_root
from specserve.processes.standard_streams import complain, is_stdout_open, named, write_stdout
from specserve.processes.supervised_events import EXIT_FAILED, EXIT_REFUSED, Ending
from specserve.settings.config import Config, ResolvedConfig, ServerConfig, TopologyConfig
from specserve.settings.door import door_remarks
from specserve.settings.hosts import host_name, require_draft_address
from specserve.telemetry import LOG_LEVELS, setup_logging

log = logging.getLogger(__name__)

_LOOPBACK_OF_ALL = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

HELP = "serve a model over gRPC and HTTP until Ctrl-C"
EXAMPLES = """examples:
  specserve launch                                      SmolLM2 if installed, on 127.0.0.1:7411
  specserve launch --target tiny                        the embedded model, which babbles
  specserve launch --topology 2+0 --threads 4           two tensor-parallel ranks, four cores each
  specserve launch --topology 1+1 --speculation async   a draft process that drafts ahead
  specserve launch --target ./Qwen3-0.6B --port 0       a local folder, any free port
  specserve launch --target model-Q4_K_M.gguf           a GGUF file
  specserve launch --host 0.0.0.0 --api-key-file keys   to other machines, for who has a key
  specserve launch --nnodes 2 --node-rank 0 --rendezvous 10.0.0.1:29400 --private-network
                                                        over two machines: docs/deploy
  specserve launch --topology 1+1 --speculation async --draft-address 127.0.0.1:7500
                                                        with a draft node of `specserve draft`
  specserve launch --ballast 60M                        the same text at the cost of 60M
  specserve launch --config serve.toml --set engine.max_batch_rows=32

exit codes: 0 after Ctrl-C or SIGTERM, once running requests are finished; 130 (143) if a second
Ctrl-C (SIGTERM) cut some off; 1 after a failure; 2 for a launch that cannot start as configured
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `launch`."""
    add_service_options(parser)
    parser.add_argument(
        "--show-config",
        action="store_true",
        help="print every setting, not only what was chosen or decided (so does --log-level debug)",
    )
    # For a launch started by another command: where to report, and whom not to outlive.
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--parent-pid", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Serve; the exit code is 0 after a stop, 1 after a failure, 2 for a launch refused.

    128 and a signal's number if that ended a drain.
    """
    if arguments.parent_pid is not None:
        # SIGTERM, not SIGKILL: this process has children of its own to stop.
        die_with_parent(arguments.parent_pid, signal.SIGTERM)
    announcer = _Announcer(arguments.ready_fd, shows_all=arguments.show_config)
    try:
        wish = read_config(arguments)
        if arguments.parent_pid is not None:
            wish = _private(wish)
        level = wish.telemetry.log_level
        if wish.topology.nnodes > 1 and level in LOG_LEVELS:  # others are refused further on
            setup_logging("supervisor", level)  # who is waited for is said meanwhile
        with Meeting() as meeting:
            config = resolve_here(wish, meeting.attend)
            setup_logging("supervisor", config.telemetry.log_level)
            if meeting.links.leads:
                require_free_ports(config.server)
            require_draft_address(config.topology)
            announcer.resolved(wish, config)
            ending = launch(
                config,
                runtime_root=runtime_root(),
                on_ready=lambda report: announcer.ready(report, config),
                hosts=meeting.links,
            )
    except Unavailable as error:  # another node, as may be well later
        ending = Ending(EXIT_FAILED, str(error), error.code)
    except SpecserveError as error:
        ending = Ending(EXIT_REFUSED, str(error), error.code)
    announcer.ended(ending)
    return ending.exit_code


def _private(wish: Config) -> Config:
    """For the command that started this launch alone, whoever else its file lets in."""
    usual = ServerConfig()
    alone = TopologyConfig()
    topology = msgspec.structs.replace(
        wish.topology,
        nnodes=alone.nnodes,
        node_rank=alone.node_rank,
        rendezvous=None,
        spread=None,
        draft_address=None,
    )
    server = msgspec.structs.replace(
        wish.server,
        host=usual.host,
        insecure=usual.insecure,
        api_key_file=None,
        max_requests_per_key=usual.max_requests_per_key,
        tls_cert=None,
        tls_key=None,
    )
    return msgspec.structs.replace(wish, server=server, topology=topology)


class _Announcer:
    """Tells a person on the terminal, or the command that started this launch, how it goes.

    With stdout closed, as supervisors of daemons start their services, the log says it.
    """

    def __init__(self, ready_fd: int | None, *, shows_all: bool) -> None:
        self._ready_fd = ready_fd
        self._shows_all = shows_all

    def resolved(self, wish: Config, config: ResolvedConfig) -> None:
        if self._ready_fd is None and is_stdout_open():
            shows_all = self._shows_all or config.telemetry.log_level == "debug"
            with named("stdout"):
                print_config(config_rows(config) if shows_all else telling_rows(wish, config))
        if (remark := context_remark(wish, config)) is not None:
            log.warning("%s", remark)
        if (remark := unused_remark(wish, config)) is not None:
            log.warning("%s", remark)
        for remark in door_remarks(config.server):
            log.warning("%s", remark)
        for remark in (
            target_remark(wish, config),
            dtype_remark(config),
            memory_remark(config),
            no_drafter_remark(wish, config),
            faster_drafter_remark(wish, config),
            device_remark(wish, config),
            draft_node_remark(config),
            link_remark(config),
            ballast_remark(config),
        ):
            if remark is not None:
                log.info("%s", remark)
        if config.oversubscribed:
            log.warning("oversubscribed: processes share devices or cores; timings mean nothing")

    def ready(self, report: ReadyReport, config: ResolvedConfig) -> None:
        if self._ready_fd is not None:
            report_ready(self._ready_fd, address=report.address, http_url=report.http_url)
            self._ready_fd = None
            return
        here = socket.gethostname()
        lines = ready_lines(report, here) if report.address else [member_line(config)]
        for line in lines:
            if is_stdout_open():
                write_stdout(f"{line}\n")
            else:
                log.info("%s", line)

    def ended(self, ending: Ending) -> None:
        if not ending.error:
            return
        if self._ready_fd is None:
            complain(ending.error)
        else:
            report_failure(self._ready_fd, ending.error, ending.code)


def member_line(config: ResolvedConfig) -> str:
    """What a node says that has no API."""
    rank, hosts = config.topology.node_rank, config.hosts
    names = [f"{place.role} {place.rank}" for place in config.own_placements]
    first = host_name(0, hosts[0])
    return f"{host_name(rank, hosts[rank])} is ready: {', '.join(names)}; {first} has the API"


def ready_lines(report: ReadyReport, host_name: str) -> list[str]:
    """Where the service is, as a client or a browser takes it; gRPC's place comes last.

    An address that stands for every interface is none to connect to: there are this machine's own
    and its name.
    """
    grpc_places = _reached_at(report.address, host_name)
    note = "" if grpc_places == [report.address] else f" (on all interfaces: {report.address})"
    lines = [f"listening on {' and '.join(grpc_places)}{note}"]
    if report.http_url:
        scheme, _, place = report.http_url.partition("://")
        urls = [f"{scheme}://{reached}" for reached in _reached_at(place, host_name)]
        apis = " and ".join(f"{url}/v1" for url in urls)
        pages = " and ".join(f"{url}/" for url in urls)
        lines = [f"OpenAI-compatible API at {apis}", f"watch it work at {pages}", *lines]
    return lines


def _reached_at(place: str, host_name: str) -> list[str]:
    host, _, port = place.rpartition(":")
    if (loopback := _LOOPBACK_OF_ALL.get(host)) is None:
        return [place]
    return [f"{loopback}:{port}", *([f"{host_name}:{port}"] if host_name else [])]
