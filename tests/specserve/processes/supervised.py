"""A real supervisor in a process of its own, over scripted children; see `stand_in.py`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = "STAND_IN_FOLDER"  # the variable that tells preloads where to leave their traces


class Supervised:
    """One supervisor over stand-in children."""

    def __init__(
        self,
        folder: Path,
        num_ranks: int,
        num_drafts: int,
        behaviours: dict[str, str],
        preload: str = "",
    ) -> None:
        """`preload`: of a forkserver that forks the nodes; without, they are spawned."""
        self.folder = folder
        targets = [f"target{rank}" for rank in range(num_ranks)]
        self.names = ["api", *targets, *(f"draft{rank}" for rank in range(num_drafts))]
        script = {"folder": str(folder), "behaviours": behaviours}
        (folder / "script.json").write_text(json.dumps(script))
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "supervise_stand_ins.py"), str(folder),
             str(num_ranks), str(num_drafts), preload],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def await_file(self, name: str) -> str:
        deadline = time.monotonic() + 20
        while not (self.folder / name).exists() or not (self.folder / name).read_text():
            assert time.monotonic() < deadline, f"{name} never appeared"
            time.sleep(0.02)
        return (self.folder / name).read_text()

    def await_ready(self) -> "Supervised":
        self.await_file("ready")
        return self

    def pid(self, name: str) -> int:
        return int(self.await_file(f"{name}.pid"))

    def finish(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=20)
        return self.process.returncode, stderr

    def stop(self) -> str:
        """End it cleanly; what it wrote to stderr."""
        self.process.send_signal(signal.SIGTERM)
        returncode, stderr = self.finish()
        assert returncode == 0
        assert self.alive() == []
        return stderr

    def alive(self) -> list[str]:
        return [name for name in self.names if is_alive(self.folder / f"{name}.pid")]


def is_alive(pid_file: Path) -> bool:
    """A process that ended but was not yet reaped by init counts as dead."""
    try:
        pid = int(pid_file.read_text())  # no number is no process: it may not be looked up
        stat = Path("/proc", str(pid), "stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
