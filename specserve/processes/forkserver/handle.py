# pyright: strict
"""The supervisor's side of its forkserver: asks for processes, learns their pids, ends them all.

Nothing here waits for the forkserver, which may still be importing: a process that was asked for is
there from the supervisor's point of view, and has a pid once `Forkserver.read` has seen it born.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from specserve.processes.forkserver.messages import MAX_PACKET_BYTES, ROOM, Born, Fork, Preload


class ForkedProcess:
    """A child that its forkserver began; what is used here of `subprocess.Popen`."""

    stdin = None

    def __init__(self, forkserver: "Forkserver") -> None:
        self.pid = 0  # not born yet
        self.returncode: int | None = None  # as of the last `poll` or `wait`
        self.unborn_end: int | None = None  # of the forkserver, where that came before the birth
        self._forkserver = forkserver

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def send_signal(self, signum: int) -> None:
        """One that is not born yet never will be: it has nothing to tidy up."""
        if self._is_born_or_never() and self.returncode is None:
            os.kill(self.pid, signum)

    def kill_group(self) -> None:
        """This process and whatever it started."""
        if self._is_born_or_never() and self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)

    def _is_born_or_never(self) -> bool:
        """Whether it is born; otherwise its forkserver ends, and with that the matter."""
        if not self.pid:
            self._forkserver.read()
        if not self.pid:
            self._forkserver.kill()  # which may find that it was born
        return self.pid > 0

    def _reap(self, options: int) -> int | None:
        if self.returncode is None and not self.pid:
            self.returncode = self.unborn_end
        elif self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Forkserver:
    """One life of the process that forks."""

    def __init__(
        self, preloads: Sequence[str], *, log_level: str, environment: Mapping[str, str]
    ) -> None:
        """Begins it; this process has to `adopt_orphans`.

        `preloads`: modules whose `preload()` it calls before it forks anything.
        """
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        words = [sys.executable, "-P", "-m", "specserve.processes.forkserver"]
        words += ["--parent-pid", str(os.getpid()), "--socket-fd", str(theirs.fileno())]
        words += ["--log-level", log_level, ROOM]
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
        # Not an argument: whoever looks for nodes by name should find nodes alone.
        self.socket.send(msgspec.json.encode(Preload(modules=tuple(preloads))))
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
        """Ask for a process; see `Fork`. Raises OSError if the forkserver cannot be asked."""
        message = Fork(index=self._num_asked, module=module, words=tuple(map(os.fsencode, words)))
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
