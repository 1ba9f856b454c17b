# pyright: strict
"""The supervisor's side of its zygote: asks for processes, learns their pids, ends them all.

Nothing here waits for the zygote, which may still be importing: a process that was asked for is
there from the supervisor's point of view, and has a pid once `Zygote.read` has seen it born.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from specserve.zygote.command_line import ROOM
from specserve.zygote.messages import MAX_PACKET_BYTES, Born, Fork

_PR_SET_CHILD_SUBREAPER = 36


class ForkedProcess:
    """A child of this process that its zygote began; what is used here of `subprocess.Popen`."""

    stdin = None

    def __init__(self, zygote: "Zygote") -> None:
        self.pid = 0  # not born yet
        self.returncode: int | None = None  # as of the last `poll` or `wait`
        self.unborn_end: int | None = None  # of the zygote, where that came before the birth
        self._zygote = zygote

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def send_signal(self, signum: int) -> None:
        """One that is not born yet never will be: it has nothing to tidy up."""
        if not self.pid:
            self._zygote.kill()
        elif self.returncode is None:
            os.kill(self.pid, signum)

    def kill_group(self) -> None:
        """This process and whatever it started."""
        if not self.pid:
            self._zygote.kill()  # which may find that it was born
        if self.pid and self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None and not self.pid:
            self.returncode = self.unborn_end
        elif self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Zygote:
    """One life of the process that forks."""

    def __init__(
        self, preloads: Sequence[str], *, log_level: str, environment: Mapping[str, str]
    ) -> None:
        """Begins it. `preloads`: modules whose `preload()` it calls before it forks anything."""
        # Of what is forked twice the kernel makes a child of the nearest process that wants any.
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError("prctl(PR_SET_CHILD_SUBREAPER)")
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        words = [sys.executable, "-P", "-m", "specserve.zygote"]
        words += ["--parent-pid", str(os.getpid()), "--socket-fd", str(theirs.fileno())]
        words += ["--log-level", log_level, *preloads, ROOM]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                # Or numpy begins threads, which no fork would take along.
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
            )
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        self._unborn: dict[int, ForkedProcess] = {}
        self._num_asked = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """As of the last `reap`."""
        return self._process.returncode is None

    def fork(self, module: str, words: Sequence[str], descriptors: Sequence[int]) -> ForkedProcess:
        """Ask for a process; see `Fork`. Raises OSError if the zygote cannot be asked."""
        message = Fork(index=self._num_asked, module=module, words=tuple(words))
        socket.send_fds(self.socket, [msgspec.json.encode(message)], descriptors)
        process = self._unborn[self._num_asked] = ForkedProcess(self)
        self._num_asked += 1
        return process

    def read(self) -> bool:
        """Take what has arrived. False once nothing more can come."""
        while True:
            try:
                packet = self.socket.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            born = msgspec.json.decode(packet, type=Born)
            self._unborn.pop(born.index).pid = born.pid

    def reap(self) -> bool:
        """True if it died since the last look; what was not born by then has died with it."""
        if not self.alive or self._process.poll() is None:
            return False
        self._let_go()
        return True

    def kill(self) -> None:
        """End it, and what it was about to bring forth."""
        if self.alive:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._let_go()

    def close(self) -> None:
        """Free its socket."""
        self.socket.close()

    def _let_go(self) -> None:
        self.socket.shutdown(socket.SHUT_RD)  # who has not said by now that it is born cannot live
        self.read()
        for process in self._unborn.values():
            process.unborn_end = self._process.returncode
        self._unborn.clear()
