# pyright: strict
"""One launch from configuration to end: resolve, plan the processes, supervise them.

Starts nodes by module name and imports none of them, nor torch: this process stays small and
starts at once.
"""

import errno
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from specserve.api.tracing import require_traces
from specserve.errors import InvalidField, Unsupported
from specserve.models.config import read_spec
from specserve.processes.child import ChildCommand
from specserve.processes.mps import mps
from specserve.processes.process import ReadyReport
from specserve.processes.run_dir import run_dir
from specserve.processes.signal_pipe import SignalPipe
from specserve.processes.supervised_events import Ending
from specserve.processes.supervisor import Supervisor
from specserve.settings.config import (
    Config,
    Placement,
    ResolvedConfig,
    ServerConfig,
    write_resolved,
)
from specserve.settings.door import require_safe_door
from specserve.settings.drafter_source import locate_drafter
from specserve.settings.hardware import probe
from specserve.settings.model_name import model_name
from specserve.settings.resolve import resolve, resolve_device
from specserve.settings.target_source import locate_target
from specserve.settings.topology import parse_topology

_MODULES = {"api": "specserve.api", "target": "target_node", "draft": "draft_node"}
_PRELOADS = {"target": "target_node.start", "draft": "draft_node.start"}
_STARTUP_TIMEOUT_S = 1800.0  # a process that is not ready by then ends the launch


def resolve_here(config: Config) -> ResolvedConfig:
    """`resolve` on this machine and the configured model. Raises InvalidField, Unsupported."""
    if (endpoint := config.telemetry.otlp_endpoint) is not None:
        require_traces(endpoint)
    config = msgspec.structs.replace(config, server=require_safe_door(config.server))
    folder = locate_target(config.model.target)
    topology = parse_topology(config.topology.topology)
    hardware = probe()
    device = resolve_device(config, topology, hardware)
    num_drafts = topology.num_draft_processes
    speculation = locate_drafter(config.speculation, folder, num_drafts, device=device)
    spec, name = read_spec(folder), config.model.name or model_name(folder)
    model = msgspec.structs.replace(config.model, name=name)
    config = msgspec.structs.replace(config, model=model, speculation=speculation)
    return resolve(config, hardware, spec, folder)


def launch(
    config: ResolvedConfig, *, runtime_root: Path, on_ready: Callable[[ReadyReport], None]
) -> Ending:
    """Serve until a signal or a failure; `on_ready` hears where once requests are accepted."""
    with (
        SignalPipe() as signals,  # no signal keeps the folder
        run_dir(runtime_root) as folder,
        mps(config.topology.mps, folder) as clients,
    ):
        topology = msgspec.structs.replace(config.topology, mps=bool(clients))
        config = msgspec.structs.replace(config, topology=topology)
        path = folder / "config.json"
        write_resolved(config, path)
        supervisor = Supervisor(
            plan_children(config, clients),
            signals=signals,
            config=path,
            control_dir=folder,
            startup_timeout_s=_STARTUP_TIMEOUT_S,
            drain_timeout_s=config.server.drain_notice_s + config.server.drain_timeout_s,
            draft_timeout_s=config.speculation.draft_timeout_s,
        )
        return supervisor.run(on_ready)


def plan_children(
    config: ResolvedConfig, mps_clients: Mapping[str, Mapping[str, str]] | None = None
) -> list[ChildCommand]:
    """One command per placement, target ranks first: they take longest to start.

    `mps_clients`: the environment of those that share a GPU, by role.
    """
    num_of_role = Counter(placement.role for placement in config.placements)
    forked = [p for p in config.placements if p.role in _PRELOADS and p.is_on_cpu]
    if [placement.role for placement in forked] == ["target"]:
        forked = []  # one start, and no other: nothing to share
    return [
        ChildCommand(
            role=placement.role,
            rank=placement.rank,
            module=_MODULES[placement.role],
            world_size=num_of_role[placement.role],
            preload=_PRELOADS[placement.role] if placement in forked else "",
            environment=_shared_environment(config, placement, mps_clients or {}),
        )
        for placement in config.placements
    ]


def _shared_environment(
    config: ResolvedConfig, placement: Placement, mps_clients: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[str, str], ...]:
    if placement.is_on_cpu or config.num_sharing(placement.device) == 1:
        return ()
    return tuple(mps_clients.get(placement.role, {}).items())


def require_free_ports(server: ServerConfig) -> None:
    """Fail before loading a model. The API process binds later, and reports a lost race itself.

    Raises InvalidField for a port in use, Unsupported for one that this process may not have.
    """
    _require_free_port(server, server.grpc_port, "server.grpc_port", "--port")
    if (http_port := server.http_port_wish) is not None:
        _require_free_port(server, http_port, "server.http_port", "--http-port")


def _require_free_port(server: ServerConfig, port: int, setting: str, flag: str) -> None:
    place = f"{server.place}:{port}"
    try:
        with socket.socket(server.family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((server.host, port))
    except PermissionError as error:
        raise Unsupported(f"{setting}: no permission to listen on {port}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidField(
                setting, f"{place} is in use; {flag} 0 takes any free one"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            problem = f"{server.host} is no address of this machine; 0.0.0.0 is all of them"
            raise InvalidField("server.host", problem) from error
        raise Unsupported(f"{setting}: cannot listen on {place}: {error.strerror}") from error
