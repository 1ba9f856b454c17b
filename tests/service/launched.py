"""`specserve launch` as a user starts it: a process, what it says, and the children it has."""

import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_LAUNCH = ("launch", "--port", "0")


class Launched:
    """`specserve launch` as a user starts it, its output collected."""

    def __init__(
        self,
        *flags: str,
        within: Sequence[str] = (),
        command: Sequence[str] = _LAUNCH,
        target: str = "tiny",
    ) -> None:
        """`within`: what runs a command where this one is to run; no `target`: the usual one."""
        own = ("--target", target) if target else ()
        words = [*within, sys.executable, "-m", "specserve", *command, *own, *flags]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # gRPC's core repeats what strangers sent, whatever it is
        )
        self.lines: list[str] = []
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening on" in line or " is ready: " in line:
                self._listening.set()
        self._listening.set()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def await_ready(self) -> None:
        """Of one without an API, too."""
        assert self._listening.wait(120)
        assert self.process.poll() is None, self.output

    def address(self) -> str:
        assert self._listening.wait(120)
        match = re.search(r"listening on (\S+)", self.output)
        assert match, self.output
        return match[1]

    def children(self, module: str) -> dict[int, str]:
        """pid -> command line of the children that run `module`."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == self.process.pid and f"-m {module} " in command:
                found[int(folder.name)] = command
        return found

    def exit_code(self, timeout_s: float = 60) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(10)
        return code
