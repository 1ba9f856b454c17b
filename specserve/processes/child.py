# pyright: strict
"""One child process as its supervisor sees it: started, ready, dead. Knows no policy."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from specserve.processes.forkserver.handle import Forkserver
from specserve.processes.process import ReadyReport, command_line, decode_report, descriptor_words

_MAX_REPORT_BYTES = 1 << 16
# Weights on huge pages: 5-10 % of a forward on CPU, where streaming them is all it does.
_ALLOCATOR = "glibc.malloc.hugetlb=1"
# Turns that threads of OpenMP wait between forwards before they sleep: some 50 us. By default they
# are 300,000, in which they keep whoever they wait for from running where cores are not idle.
_SPIN = "1000"


def environment() -> dict[str, str]:
    """Of the processes of a service. What is set already has the last word."""
    own = {"GLIBC_TUNABLES": _ALLOCATOR}
    if "OMP_WAIT_POLICY" not in os.environ:
        own["GOMP_SPINCOUNT"] = _SPIN
    return own | os.environ


class ChildCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `role` and `rank` are those of the placement."""

    role: str
    rank: int
    module: str
    world_size: int = 1  # children of this role
    preload: str = ""  # forked by a forkserver that has called this module's `preload`
    # Besides that of all; names and values. Not for those that are forked.
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """As users read it: "target rank 1", "draft process 0", "API process"."""
        if self.role == "api":
            return "API process"
        return f"{self.role} {'process' if self.role == 'draft' else 'rank'} {self.rank}"

    def words(self, config: Path, control_dir: Path) -> list[str]:
        """Arguments, without those for descriptors; ranks are passed to ranked roles only."""
        words = ["--config", str(config), "--control-dir", str(control_dir)]
        words += ["--parent-pid", str(os.getpid())]
        if self.role != "api":
            words += ["--rank", str(self.rank), "--world-size", str(self.world_size)]
        return words


class _SpawnedProcess(subprocess.Popen[bytes]):
    """One that does its own imports. It leads a group of processes."""

    def kill_group(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)


class Child:
    """A started child. It leads its own session, so that Ctrl-C reaches the supervisor alone."""

    def __init__(
        self,
        command: ChildCommand,
        config: Path,
        control_dir: Path,
        link_fds: Sequence[int] = (),
        forkserver: Forkserver | None = None,
    ) -> None:
        """`link_fds` stay open in the child. With a `forkserver` that one starts it.

        Raises OSError.
        """
        self.command = command
        self.report: ReadyReport | None = None  # its first one: whether it can serve
        self.farewell: ReadyReport | None = None  # why it cannot, or can no longer
        self.is_heard_out = False  # it can report nothing more
        self.is_doomed = False
        self._received = b""
        words = command.words(config, control_dir)
        self.ready_fd, write_end = os.pipe()
        os.set_blocking(self.ready_fd, False)
        try:
            if forkserver is not None:
                self._process = forkserver.fork(command.module, words, (write_end, *link_fds))
            else:
                words += descriptor_words(write_end, link_fds)
                self._process = _SpawnedProcess(
                    command_line(command.module, words),
                    stdin=subprocess.PIPE if command.role == "api" else subprocess.DEVNULL,
                    pass_fds=(write_end, *link_fds),
                    start_new_session=True,
                    env=environment() | dict(command.environment),
                )
        except BaseException:
            os.close(self.ready_fd)
            raise
        finally:
            os.close(write_end)

    @property
    def pid(self) -> int:
        """0 before it is born."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """As of the last `reap`."""
        return self._process.returncode is None

    @property
    def ended_well(self) -> bool:
        """With status 0, as of the last `reap`."""
        return self._process.returncode == 0

    def reap(self) -> bool:
        """Collect the exit status; True if the child died since the last look."""
        return self.alive and self._process.poll() is not None

    @property
    def is_stopped(self) -> bool:
        """Whether it stands still, by SIGSTOP or a debugger, until somebody lets it go on."""
        if not self.alive or not self.pid:
            return False
        try:
            stat = Path("/proc", str(self.pid), "stat").read_text()
        except OSError:  # it ended meanwhile
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    @property
    def is_consequence(self) -> bool:
        """Whether it ended because another process had ended or stood still, by its own word."""
        return self.farewell is not None and self.farewell.is_consequence

    def describe_end(self) -> str:
        """Why it ended by its own word, or else how."""
        return self.farewell.error if self.farewell else self.describe_death()

    def describe_death(self) -> str:
        """Such as "target rank 1 was killed by SIGKILL"."""
        status = self._process.returncode
        if status is not None and status < 0:
            return f"{self.command.name} was killed by {signal.Signals(-status).name}"
        return f"{self.command.name} exited with status {status}"

    def read_reports(self) -> None:
        """Take what the ready pipe holds."""
        try:
            while data := os.read(self.ready_fd, _MAX_REPORT_BYTES):
                self._take(data)
            self.is_heard_out = True
        except BlockingIOError:
            return

    def _take(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _MAX_REPORT_BYTES:  # no line of ours
            lines.append(self._received)
            self._received = b""
        for report in map(decode_report, lines):
            self.report = self.report or report
            if not report.ready:
                self.farewell = self.farewell or report

    def tell(self, line: bytes) -> None:
        """Write one line to the child's stdin; a dead child hears nothing."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def terminate(self) -> None:
        """Ask for a clean stop."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)

    def doom(self) -> None:
        """Kill without waiting: a process deep in a driver may take its time to go."""
        if self.alive:
            self.is_doomed = True
            self._process.kill_group()

    def kill(self) -> None:
        """End the child and whatever it started, and reap it."""
        if self.alive:
            self._process.kill_group()
            self._process.wait()

    def close(self) -> None:
        """Release the pipes."""
        os.close(self.ready_fd)
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:  # an unflushed line for a dead child
                return
