"""A real supervisor over scripted children; arguments: FOLDER NUM_RANKS NUM_DRAFTS PRELOAD."""

import sys
from pathlib import Path

from specserve.processes import supervisor as module
from specserve.processes.child import ChildCommand
from specserve.processes.signal_pipe import SignalPipe
from specserve.processes.supervisor import Supervisor, Timeouts
from specserve.telemetry import setup_logging

# Many tests wait until one of them is over. Children that only pretend need less than real ones.
module._DRAFT_STOP_GRACE_S = 0.5
module._CUT_GRACE_S = 2.0
module._CAUSE_GRACE_S = 1.2
module._DRAIN_MARGIN_S = 2.0


def main(folder: Path, num_ranks: int, num_drafts: int, preload: str) -> int:
    setup_logging("supervisor", "warning")
    targets = [
        ChildCommand(
            role="target",
            rank=rank,
            module="stand_in_target",
            world_size=num_ranks,
            preload=preload,
        )
        for rank in range(num_ranks)
    ]
    drafts = [
        ChildCommand(
            role="draft",
            rank=rank,
            module="stand_in_draft",
            world_size=num_drafts,
            preload=preload,
        )
        for rank in range(num_drafts)
    ]
    with SignalPipe() as signals:
        supervisor = Supervisor(
            [*targets, *drafts, ChildCommand(role="api", rank=0, module="stand_in_api")],
            signals=signals,
            config=folder / "script.json",
            control_dir=folder,
            timeouts=Timeouts(startup_s=10, drain_s=0.5, draft_s=0.5),
        )
        ending = supervisor.run(
            on_ready=lambda report: (folder / "ready").write_text(report.address)
        )
    if ending.error:
        sys.stderr.write(f"specserve: {ending.error}\n")
    return ending.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
