# pyright: strict
"""NVIDIA MPS for one launch: kernels of processes that share a GPU run side by side, not in turns.

The daemon is the launch's own: it is reached through a folder of the launch's, and changes nothing
on the device. It is tried before any process of the service is started, by a process that makes a
context on every GPU: what goes wrong later would end the service. A guard stops it when the launch
is over, however that ends. Both are this module:

    python -m specserve.processes.mps trial
    python -m specserve.processes.mps guard FOLDER

If the daemon ends before, the guard takes its folder away: a process that is started later finds no
daemon then and runs without, as the driver has it.
"""

import ctypes
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from specserve.errors import Unsupported
from specserve.processes.process import command_line

log = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
_MODULE = "specserve.processes.mps"
TRIAL: tuple[str, ...] = tuple(command_line(_MODULE, ["trial"]))
_START_S = 5.0
_ANSWER_S = 5.0
_TRIAL_S = 30.0  # that making a context takes, by far
_END_S = 5.0
_KILLED_S = 5.0  # until what was killed is gone
_LOOK_S = 0.05
_WATCH_S = 0.25  # between looks of the guard
# Of draft processes: the target's kernels go first where both want the device.
_BELOW_NORMAL = {"CUDA_MPS_CLIENT_PRIORITY": "1"}


@contextmanager
def mps(
    wish: bool | None, root: Path, trial: Sequence[str] = TRIAL
) -> Generator[Mapping[str, Mapping[str, str]]]:
    """The environment of processes that share a GPU, by role, while their daemon runs.

    Nothing without one: where `wish` is False, or None and it cannot be had, which is said.
    Raises Unsupported where it is wished for and cannot be had.
    """
    if wish is False:
        yield {}
        return
    daemon = _Daemon(root)
    try:
        problem = daemon.start(trial)
        if problem is None:
            log.info(
                "processes that share a GPU run side by side, by NVIDIA MPS; a draft process that "
                "dies may end the service (--no-mps)"
            )
            own = daemon.environment
            yield {"target": own, "draft": {**own, **_BELOW_NORMAL}}
            return
        daemon.stop()
        if wish:
            raise Unsupported(f"topology.mps: {problem} (--no-mps)")
        log.info("processes that share a GPU take turns on it, without NVIDIA MPS: %s", problem)
        yield {}
    finally:
        daemon.stop()


class _Daemon:
    """One control daemon, whose files are in folders of `root`."""

    def __init__(self, root: Path) -> None:
        # Sockets of the daemon are in the first: its path has to be short.
        self._folder, self._logs = root / "mps", root / "mps-log"
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """By which its clients find it."""
        return _environment(self._folder)

    def start(self, trial: Sequence[str]) -> str | None:
        """What is in the way, in words; None: it runs and has been used by a process."""
        if shutil.which(CONTROL) is None:
            return f"there is no {CONTROL}"
        self._folder.mkdir()
        self._logs.mkdir()
        self._guard = subprocess.Popen(
            command_line(_MODULE, ["guard", str(self._folder)]),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        return (
            self._run([CONTROL, "-d"], f"{CONTROL} -d", _START_S)
            or self._run(trial, "a process that used it", _TRIAL_S)
            or self._has_no_server()
        )

    def stop(self) -> None:
        """No process of it is left; in vain if there is none."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(_ANSWER_S + 2 * _END_S)
        if guard.poll() is None:
            os.killpg(guard.pid, signal.SIGKILL)  # with whatever it waits for
            guard.wait()
        stop(self._folder)  # if the guard did not

    def _run(self, words: Sequence[str], name: str, timeout_s: float) -> str | None:
        """What went wrong, in words. It writes to a file: who stays behind keeps pipes open."""
        path = self._logs / "said"
        with path.open("wb") as said:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{name} did not end within {timeout_s:g} s"
        if status == 0:
            return None
        lines = path.read_text(errors="replace").split("\n")
        return f"{name} failed: {lines[0].strip() or f'status {status}'}"

    def _has_no_server(self) -> str | None:
        """A process that did not find the daemon runs without, and does not complain."""
        answer = _ask(self._folder, "get_server_list")
        if answer is None:
            return f"{CONTROL} does not answer"
        return None if answer.split() else f"{CONTROL} has started no server"


def _environment(folder: Path) -> dict[str, str]:
    logs = folder.with_name("mps-log")
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(logs)}


def _ask(folder: Path, command: str) -> str | None:
    """What the daemon answers; None for no answer in time, or an error."""
    try:
        done = subprocess.run(
            [CONTROL],
            input=f"{command}\n",
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            env={**os.environ, **_environment(folder)},
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout


def stop(folder: Path) -> None:
    """End the daemon that is reached by `folder` and what it has started, if they run."""
    if _runs(folder):
        _ask(folder, "quit")
    if not _await_end(folder, _END_S):
        for pid in _family(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _await_end(folder, _KILLED_S)


def _await_end(folder: Path, timeout_s: float) -> bool:
    """Whether all are gone, in time."""
    deadline_s = time.monotonic() + timeout_s
    while _family(folder):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _runs(folder: Path) -> bool:
    """Whether the daemon does."""
    try:
        pid = int((folder / f"{CONTROL}.pid").read_text())
    except (OSError, ValueError):
        return False
    return pid in _family(folder)


def _family(folder: Path) -> set[int]:
    """The daemon, its servers, and who talks to it: by their name and by the folder they know."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={folder}\0".encode()
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            is_of_mps = b"nvidia-cuda-mps" in (path / "cmdline").read_bytes()
            if is_of_mps and mark in (path / "environ").read_bytes():
                found.add(int(path.name))
    return found


def guard(folder: Path) -> None:
    """Until the input ends, as it does with the launch."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    has_run = False
    while not select.select([sys.stdin], [], [], _WATCH_S)[0]:
        has_run |= (folder / f"{CONTROL}.pid").exists()
        if has_run and folder.exists() and not _runs(folder):
            shutil.rmtree(folder, ignore_errors=True)
    stop(folder)


def try_devices() -> str | None:
    """Makes a context on every GPU. Which call of the driver failed, if one has; needs no torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    if error := driver.cuInit(0):
        return f"cuInit returned {error}"
    if error := driver.cuDeviceGetCount(ctypes.byref(count)):
        return f"cuDeviceGetCount returned {error}"
    for index in range(count.value):
        if error := driver.cuDeviceGet(ctypes.byref(device), index):
            return f"cuDeviceGet returned {error}"
        if error := driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return f"cuDevicePrimaryCtxRetain returned {error}"
    return None


def main() -> int:
    """The status: 1 after a trial that failed, which says why."""
    if sys.argv[1] == "guard":
        guard(Path(sys.argv[2]))
    elif (problem := try_devices()) is not None:
        sys.stdout.write(f"{problem}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
