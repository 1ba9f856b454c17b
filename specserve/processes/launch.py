# pyright: strict
"""One launch from configuration to end: resolve, plan the processes, supervise them.

Starts nodes by module name and imports none of them, nor torch: this process stays small and
starts at once.
"""

import errno
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from specserve.api.tracing import require_traces
from specserve.errors import InvalidField, Unsupported
from specserve.models.config import read_spec
from specserve.processes.child import ChildCommand
from specserve.processes.hosts.links import HostLinks
from specserve.processes.mps import mps
from specserve.processes.process import ReadyReport
from specserve.processes.run_dir import run_dir
from specserve.processes.signal_pipe import SignalPipe
from specserve.processes.supervised_events import Ending
from specserve.processes.supervisor import Supervisor, Timeouts
from specserve.settings.agreement import agreed_on
from specserve.settings.config import (
    Config,
    Placement,
    ResolvedConfig,
    ServerConfig,
    TopologyConfig,
    write_resolved,
)
from specserve.settings.door import require_safe_door
from specserve.settings.drafter_source import locate_drafter
from specserve.settings.hardware import Hardware, probe
from specserve.settings.hosts import HostFacts, check_hosts
from specserve.settings.model_name import model_name
from specserve.settings.placing import resolve_device
from specserve.settings.resolve import resolve
from specserve.settings.target_source import locate_target
from specserve.settings.topology import parse_topology

_MODULES = {"api": "specserve.api", "target": "target_node", "draft": "draft_node"}
_PRELOADS = {"target": "target_node.start", "draft": "draft_node.start"}
_STARTUP_TIMEOUT_S = 1800.0  # a process that is not ready by then ends the launch


# What all machines of a launch say of themselves, for one that says what it has and goes by.
Attend = Callable[[TopologyConfig, Hardware, dict[str, str]], Sequence[HostFacts]]


def resolve_here(
    config: Config, attend: Attend | None = None, *, has_ranks: bool = True
) -> ResolvedConfig:
    """`resolve` on this machine and the configured model; see there for `has_ranks`.

    `attend` meets the other machines of a launch over several; without, all is for this one. Raises
    InvalidField, Unsupported, and what `attend` does.
    """
    check_hosts(config.topology)
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
    if config.topology.nnodes == 1 or attend is None:
        return resolve(config, hardware, spec, folder, has_ranks=has_ranks)
    facts = attend(config.topology, hardware, agreed_on(config, folder, device))
    return resolve(config, hardware, spec, folder, facts)


def launch(
    config: ResolvedConfig,
    *,
    runtime_root: Path,
    on_ready: Callable[[ReadyReport], None],
    hosts: HostLinks | None = None,
) -> Ending:
    """Serve until a signal or a failure; `on_ready` hears where once requests are accepted.

    `hosts`: the other machines of the launch, if there are any.
    """
    if hosts is not None:
        hosts.place(config)
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
            timeouts=Timeouts(
                startup_s=_STARTUP_TIMEOUT_S,
                drain_s=config.server.drain_notice_s + config.server.drain_timeout_s,
                draft_s=config.speculation.draft_timeout_s,
            ),
            hosts=hosts,
        )
        return supervisor.run(on_ready)


def plan_children(
    config: ResolvedConfig, mps_clients: Mapping[str, Mapping[str, str]] | None = None
) -> list[ChildCommand]:
    """One command per placement here, target ranks first: they take longest to start.

    `mps_clients`: the environment of those that share a GPU, by role.
    """
    num_of_role = Counter(placement.role for placement in config.placements)
    forked = [p for p in config.own_placements if p.role in _PRELOADS and p.is_on_cpu]
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
        for placement in config.own_placements
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
