# pyright: strict
"""Start children, await their readiness, watch them, stop them. One thread, one selector.

Policies: a child that cannot start ends the launch with its own error line; a child that dies
while serving ends the service, after the API process has been told so that every open stream
ends with an explicit error; SIGINT and SIGTERM drain; a second one, unless it comes at once, ends
streams with an error, and if there were any the exit code is that of a command ended by it; a third
one kills.
Where several children end for one reason, the error names the first cause, not who suffered first.
Draft processes are the exception: they are started again (`draft_keeper`).
No child survives `Supervisor.run`. Knows nothing of models, requests or configurations.
"""

import logging
import math
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from specserve.errors import Unavailable
from specserve.processes.child import Child, ChildCommand, environment
from specserve.processes.draft_keeper import DraftKeeper
from specserve.processes.forkserver.handle import Forkserver
from specserve.processes.process import ReadyReport, adopt_orphans, reap_strays
from specserve.processes.roster import Roster, state_of
from specserve.processes.signal_pipe import SignalPipe
from specserve.processes.stop_signals import STOP_SIGNALS, signal_exit
from specserve.processes.supervised_events import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_REFUSED,
    BegunAgain,
    Died,
    Ending,
    Event,
    Reported,
    StopRequested,
)

log = logging.getLogger(__name__)

_TARGET_STOP_GRACE_S = 10.0
_DRAFT_STOP_GRACE_S = 2.0
_FAILURE_GRACE_S = 5.0  # for the API process to end its streams with an error
_CUT_GRACE_S = 3.0  # the same, where a second signal ends a drain
_CAUSE_GRACE_S = 2.0  # for the death of the one that another child says it dies of
_SAME_STOP_S = 0.5  # one stop may arrive twice: from a terminal and from `timeout`, say
_DRAIN_MARGIN_S = 5.0  # beyond drain_timeout_s, for the API process's own shutdown


class Supervisor:
    """Runs one set of children from start to end."""

    def __init__(
        self,
        commands: Sequence[ChildCommand],
        *,
        signals: SignalPipe,
        config: Path,
        control_dir: Path,
        startup_timeout_s: float,
        drain_timeout_s: float,
        draft_timeout_s: float,
    ) -> None:
        """`draft_timeout_s`: a draft process whose heartbeat is older is started again."""
        self._commands = commands
        self._signals = signals
        self._config = config
        self._control_dir = control_dir
        self._roster = Roster(control_dir)
        self._startup_timeout_s = startup_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._draft_timeout_s = draft_timeout_s
        self._children: list[Child] = []
        self._forkserver: Forkserver | None = None  # which starts those that ask for it
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._deaf_until_s = -math.inf  # to stop signals; CLOCK_MONOTONIC

    def run(self, on_ready: Callable[[ReadyReport], None]) -> Ending:
        """Start everything, say where requests are accepted, return when all children are gone."""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(self._signals.reader, selectors.EVENT_READ)
            self._drafts = DraftKeeper(
                self._commands,
                draft_timeout_s=self._draft_timeout_s,
                start=self._start,
                bury=self._bury,
            )
            try:
                for command in self._commands:
                    self._start(command)
                ending = self._await_ready()
                if ending is None:
                    report = self._api().report
                    assert report is not None
                    on_ready(report)
                    ending = self._serve()
                return ending
            finally:
                self._kill_all()
                self._drafts.close()

    # --- phases -----------------------------------------------------------------------------

    def _await_ready(self) -> Ending | None:
        """None once every child is ready; otherwise how the launch ended."""
        deadline = time.monotonic() + self._startup_timeout_s
        waiting = set(self._children)
        bereft: Child | None = None  # the first that failed because of another
        while waiting:
            event = self._next_event(deadline)
            if event is None:
                return _not_started(bereft) if bereft else self._not_in_time(waiting)
            if isinstance(event, StopRequested):
                return Ending(EXIT_OK)
            child = event.child
            is_ready = isinstance(event, Reported) and child.farewell is None
            if is_ready or isinstance(event, BegunAgain):  # nobody depends on a draft process
                waiting.discard(child)
            elif not child.is_consequence:
                return _not_started(child)
            elif bereft is None:
                bereft, deadline = child, min(deadline, time.monotonic() + _CAUSE_GRACE_S)
        return None

    def _not_in_time(self, waiting: set[Child]) -> Ending:
        names = ", ".join(sorted(child.command.name for child in waiting))
        limit = f"{self._startup_timeout_s:g} s"
        return Ending(EXIT_FAILED, f"{names} not ready in time ({limit})", "UNAVAILABLE")

    def _serve(self) -> Ending:
        while True:
            event = self._next_event(None)
            if isinstance(event, StopRequested):
                log.info("stopping; a second signal cuts what runs")
                return self._drain()
            # Who gives up is as good as dead, and takes its time to unload what it has loaded.
            is_lost = isinstance(event, Reported) and event.child.farewell is not None
            if event is not None and (isinstance(event, Died) or is_lost):
                return self._fail(event.child)

    def _drain(self) -> Ending:
        """Clean stop: the API process first, so that nothing new arrives, then the nodes."""
        self._drafts.retire()
        self._is_draining = True
        may_go = self._of_role("draft")  # nobody depends on a draft process
        for group, timeout_s in (
            (self._of_role("api"), self._drain_timeout_s + _DRAIN_MARGIN_S),
            (self._of_role("target"), _TARGET_STOP_GRACE_S),
            (self._of_role("draft"), _DRAFT_STOP_GRACE_S),
        ):
            may_go = [*may_go, *group]
            for child in group:
                child.terminate()
            event = self._await_exit(group, timeout_s, may_go)
            if isinstance(event, Died):
                return self._fail(event.child)
            if isinstance(event, StopRequested):
                return self._cut(event.signum)
            for child in group:
                if child.alive:
                    log.warning("%s did not stop within %g s", child.command.name, timeout_s)
                child.kill()
        return Ending(EXIT_OK)

    def _cut(self, signum: int) -> Ending:
        """A second signal. Where no request ran any more it cuts nothing, and the end is good."""
        api = self._api()
        if not api.alive:
            log.info("a second signal: every request has ended, processes are killed")
            return Ending(EXIT_OK)
        log.warning("a second signal: running requests are cut")
        api.terminate()  # it ends its streams with an error; a third signal kills
        self._await_exit([api], _CUT_GRACE_S, self._children, may_fail=True)
        return Ending(EXIT_OK if api.ended_well else signal_exit(signum))

    def _fail(self, lost: Child) -> Ending:
        """Fail-stop. The other nodes may hang in a collective with the lost one: kill them."""
        self._drafts.retire()
        detail = self._first_cause(lost)
        log.info("stopping the service")  # its last line says why
        api = self._api()
        for node in (*self._of_role("draft"), *self._of_role("target")):
            node.kill()
        if api.alive:
            api.tell(msgspec.json.encode({"event": "target_lost", "detail": detail}))
            api.terminate()
            self._await_exit([api], _FAILURE_GRACE_S, self._children, may_fail=True)
        return Ending(EXIT_FAILED, f"{detail}; the service has stopped", Unavailable.code)

    def _first_cause(self, lost: Child) -> str:
        """Why the service ends, where `lost` may have died of what another process did first."""
        deadline = time.monotonic() + _CAUSE_GRACE_S
        while lost.is_consequence:
            # Who says that it fails may take its time to end, or have said so long before.
            if (failed := self._who_fails()) is not None:
                return failed.describe_end()
            stopped = [c.command.name for c in self._of_role("target") if c.is_stopped]
            if stopped:
                return f"{', '.join(stopped)} stopped by a signal: {lost.describe_end()}"
            if time.monotonic() >= deadline:  # after a last look: a stop takes effect in its time
                break
            event = self._next_event(deadline)
            if isinstance(event, StopRequested):
                break
            if isinstance(event, Died) and self._may_be_cause(event.child):
                lost = event.child
        return lost.describe_end()

    def _may_be_cause(self, dead: Child) -> bool:
        """Nobody depends on draft processes, and who was told to stop may end well."""
        is_draft = dead.command.role == "draft"
        ended_well = self._is_draining and dead.ended_well
        return not (is_draft or dead.is_consequence or ended_well)

    def _who_fails(self) -> Child | None:
        """One that gives up for a reason of its own, by its own word; draft processes may."""
        told = [c for c in self._children if c.command.role != "draft" and c.farewell]
        return next((child for child in told if not child.is_consequence), None)

    # --- parts ------------------------------------------------------------------------------

    def _start(self, command: ChildCommand) -> Child:
        forkserver = self._live_forkserver() if command.preload else None
        link_fds = self._drafts.link_fds(command)
        child = Child(command, self._config, self._control_dir, link_fds, forkserver)
        self._children.append(child)
        self._selector.register(child.ready_fd, selectors.EVENT_READ, child)
        self._drafts.started(child)
        log.debug("started %s", command.name)
        return child

    def _live_forkserver(self) -> Forkserver:
        if self._forkserver is not None and self._forkserver.alive:
            return self._forkserver
        self._bury_forkserver()
        adopt_orphans()  # what is forked is left to us, and never was ours before
        preloads = sorted({command.preload for command in self._commands if command.preload})
        level = logging.getLevelName(log.getEffectiveLevel()).lower()
        self._forkserver = Forkserver(preloads, log_level=level, environment=environment())
        self._selector.register(self._forkserver.socket, selectors.EVENT_READ, self._forkserver)
        return self._forkserver

    def _bury_forkserver(self) -> None:
        if self._forkserver is not None:
            self._forkserver.kill()
            self._forget(self._forkserver.socket.fileno())
            self._forkserver.close()
            self._forkserver = None

    def _bury(self, child: Child) -> None:
        """Forget a dead child."""
        self._forget(child.ready_fd)
        self._children.remove(child)
        child.close()

    def _forget(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _await_exit(
        self, group: list[Child], timeout_s: float, may_go: list[Child], *, may_fail: bool = False
    ) -> StopRequested | Died | None:
        """Wait for `group` to be gone, at most `timeout_s`.

        Returns early with a second stop signal, or with the death of a child that failed (unless it
        `may_fail`) or is not in `may_go`, which must name every child told to stop so far: the
        deaths of an earlier group may still be on their way when the last of it is gone.
        """
        deadline = time.monotonic() + timeout_s
        # Of those that died in one look, whoever failed is told by an event yet to be read.
        while any(child.alive for child in group) or self._has_unread_death(group):
            event = self._next_event(deadline)
            if event is None or isinstance(event, StopRequested):
                return event
            if isinstance(event, Died):
                child, may_fail_too = event.child, may_fail or event.child.command.role == "draft"
                if child not in may_go or (child.farewell and not may_fail_too):
                    return event
        return None

    def _has_unread_death(self, group: list[Child]) -> bool:
        return any(isinstance(event, Died) and event.child in group for event in self._events)

    def _next_event(self, deadline: float | None) -> Event | None:
        """The next event, or None at `deadline` (CLOCK_MONOTONIC seconds)."""
        deadline = math.inf if deadline is None else deadline
        while not self._events:
            look_again = min(deadline, self._drafts.restart_due())
            now = time.monotonic()
            if now >= deadline:
                return None
            self._poll(None if look_again == math.inf else max(0.0, look_again - now))
        return self._events.popleft()

    def _poll(self, timeout: float | None) -> None:
        self._tell_states()
        ready = self._selector.select(timeout)
        # Reports before deaths: a child that says why it ends usually ends right after.
        for key, _ in ready:
            if isinstance(key.data, Child):
                self._read_reports(key.data)
            elif isinstance(key.data, Forkserver) and not key.data.read():
                self._forget(key.fd)
        if any(key.data is None for key, _ in ready):
            self._read_signals()

    def _tell_states(self) -> None:
        latest = {child.command.name: child for child in self._children}
        self._roster.tell(
            [state_of(c, latest.get(c.name), self._drafts.last_word(c)) for c in self._commands]
        )

    def _read_reports(self, child: Child) -> None:
        before = child.report, child.farewell
        child.read_reports()
        if child.is_heard_out:
            self._forget(child.ready_fd)
        is_news = (child.report, child.farewell) != before
        if is_news and not self._drafts.reported(child):
            self._events.append(Reported(child))

    def _read_signals(self) -> None:
        try:
            signums = self._signals.reader.recv(4096)
        except BlockingIOError:
            return
        if signal.SIGCHLD in signums:
            self._reap()
        for signum in signums:
            if signum in STOP_SIGNALS:
                self._stop_requested(signum)

    def _reap(self) -> None:
        self._known_pids()  # one that was just born may be dead already
        if self._forkserver is not None and self._forkserver.reap():
            log.info("the forkserver has ended; what it would start next takes longer")
        dead = [child for child in self._children if child.reap()]
        for child in dead:
            self._read_reports(child)  # what it said between the last look and its end
        dead.sort(key=lambda child: child.is_consequence)  # causes first
        self._events += [
            BegunAgain(child) if self._drafts.died(child) else Died(child) for child in dead
        ]
        reap_strays(self._known_pids)

    def _known_pids(self) -> set[int]:
        """Of live children, those included that the forkserver has just brought forth."""
        pids: set[int] = set()
        if self._forkserver is not None and self._forkserver.alive:
            self._forkserver.read()
            pids.add(self._forkserver.pid)
        return pids | {child.pid for child in self._children if child.alive}

    def _stop_requested(self, signum: int) -> None:
        now = time.monotonic()
        if now >= self._deaf_until_s:
            self._deaf_until_s = now + _SAME_STOP_S
            self._events.append(StopRequested(signum))

    def _api(self) -> Child:
        return self._of_role("api")[0]

    def _of_role(self, role: str) -> list[Child]:
        return [child for child in self._children if child.command.role == role]

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.close()
        self._bury_forkserver()


def _not_started(child: Child) -> Ending:
    """How a launch ends of which `child` cannot be part."""
    farewell, was_ready = child.farewell, child.report is not None and child.report.ready
    if farewell is None:
        problem = f"{child.describe_death()} while starting"
        return Ending(EXIT_FAILED, problem, "UNAVAILABLE")
    return Ending(EXIT_FAILED if was_ready else EXIT_REFUSED, farewell.error, farewell.code)
