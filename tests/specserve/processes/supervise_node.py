"""A real supervisor of one of two machines, over scripted children; arguments: FOLDER RANK ROLES.

ROLES are those of each machine, with commas between, and a slash between machines.
Node 0 writes the port that it listens on, and the other one waits for it.
"""

import socket
import sys
import time
from pathlib import Path

from supervise_stand_ins import module  # with shorter waits

from specserve.processes.child import ChildCommand
from specserve.processes.hosts.leader import Leader
from specserve.processes.hosts.links import HostLinks
from specserve.processes.hosts.member import Member
from specserve.processes.signal_pipe import SignalPipe
from specserve.telemetry import setup_logging
from tests.specserve.processes.hosts.machines import TOKEN, MetByHand, facts_of, placed

TIMEOUT_S = 30.0  # of silence: what is tested here ends connections


def links(folder: Path, rank: int) -> HostLinks:
    port = folder / "port"
    if rank == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        facts = [facts_of(each, listener.getsockname()[1]) for each in (0, 1)]
        made = Leader(facts, TIMEOUT_S, listener, TOKEN, MetByHand())
        new = folder / "port.new"
        new.write_text(str(listener.getsockname()[1]))
        new.rename(port)
        return made
    while not port.exists():
        time.sleep(0.01)
    facts = [facts_of(each, int(port.read_text())) for each in (0, 1)]
    return Member(facts, TIMEOUT_S, rank, TOKEN)


def main(folder: Path, rank: int, roles: str) -> int:
    setup_logging("supervisor", "warning")
    config = placed(*(names.replace(",", " ") for names in roles.split("/")), rank=rank)
    commands = [
        ChildCommand(role=place.role, rank=place.rank, module=f"stand_in_{place.role}")
        for place in config.own_placements
    ]
    if rank == 0:
        commands.append(ChildCommand(role="api", rank=0, module="stand_in_api"))
    hosts = links(folder, rank)
    hosts.place(config)
    own = folder / f"node{rank}"
    own.mkdir()
    with SignalPipe() as signals:
        supervisor = module.Supervisor(
            commands,
            signals=signals,
            config=folder / "script.json",
            control_dir=own,
            timeouts=module.Timeouts(startup_s=10, drain_s=0.5, draft_s=0.5),
            hosts=hosts,
        )
        ending = supervisor.run(on_ready=lambda _: (folder / f"ready{rank}").write_text("now"))
    hosts.close()
    if ending.error:
        sys.stderr.write(f"specserve: {ending.error}\n")
    return ending.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
