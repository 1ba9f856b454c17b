# pyright: strict
"""Start children, await their readiness, watch them, stop them. One thread, one selector.

Policies: a child that cannot start ends the launch with its own error line; a child that dies
while serving ends the service, after the API process has been told so that every open stream
ends with an explicit error; SIGINT and SIGTERM drain; a second one, unless it comes at once, ends
streams with an error, and if there were any the exit code is that of a command ended by it; a third
one kills.
Where several children end for one reason, the error names the first cause, not who suffered first.
Draft processes are the exception: they are started again (`draft_keeper`).
Of a launch over several machines each has a supervisor of its children. What ends one of them ends
all, but for machines with draft processes alone; node 0 has the API process and decides when to
drain (`hosts`). No child survives `Supervisor.run`. Knows nothing of models, requests or
configurations.
"""

import logging
import math
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from specserve.errors import Unavailable
from specserve.processes.child import Child, ChildCommand
from specserve.processes.draft_keeper import DraftKeeper
from specserve.processes.first_cause import Lost, first_cause, how_not_started
from specserve.processes.forkserver.handle import Forkserver
from specserve.processes.forkserver.keeper import ForkserverKeeper
from specserve.processes.hosts.links import HostLinks
from specserve.processes.process import ReadyReport, reap_strays
from specserve.processes.roster import Roster, state_of
from specserve.processes.signal_pipe import SignalPipe
from specserve.processes.stop_signals import STOP_SIGNALS, signal_exit
from specserve.processes.supervised_events import (
    EXIT_FAILED,
    EXIT_OK,
    BegunAgain,
    Died,
    Ending,
    Event,
    HostEnded,
    Reported,
    ServiceEnded,
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


class Timeouts(NamedTuple):
    """Of one launch, in seconds."""

    startup_s: float  # a process that is not ready by then ends the launch
    drain_s: float  # that running requests have
    draft_s: float  # a draft process whose heartbeat is older is started again


class Supervisor:
    """Runs one set of children from start to end."""

    def __init__(
        self,
        commands: Sequence[ChildCommand],
        *,
        signals: SignalPipe,
        config: Path,
        control_dir: Path,
        timeouts: Timeouts,
        hosts: HostLinks | None = None,
    ) -> None:
        """`hosts`: the other machines of the launch, if there are any."""
        self._commands = commands
        self._signals = signals
        self._config = config
        self._control_dir = control_dir
        self._roster = Roster(control_dir)
        self._timeouts = timeouts
        self._hosts = hosts or HostLinks()
        self._children: list[Child] = []
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._deaf_until_s = -math.inf  # to stop signals; CLOCK_MONOTONIC

    def run(self, on_ready: Callable[[ReadyReport], None]) -> Ending:
        """Start everything, say where requests are accepted, return when all children are gone."""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            selector.register(self._signals.reader, selectors.EVENT_READ)
            self._hosts.watch(selector)
            self._forkservers = ForkserverKeeper(self._commands, selector)
            self._drafts = DraftKeeper(
                self._commands,
                draft_timeout_s=self._timeouts.draft_s,
                start=self._start,
                bury=self._bury,
            )
            try:
                for command in self._commands:
                    self._start(command)
                ending = self._await_ready()
                if ending is None:
                    self._hosts.tell_ready()
                    api = self._api()
                    report = ReadyReport(ready=True) if api is None else api.report
                    assert report is not None
                    on_ready(report)
                    ending = self._serve()
                self._hosts.tell_ending(ending)
                return ending
            finally:
                self._kill_all()
                self._drafts.close()

    # --- phases -----------------------------------------------------------------------------

    def _await_ready(self) -> Ending | None:
        """None once every child, and every other machine, is ready; else how the launch ended."""
        deadline = time.monotonic() + self._timeouts.startup_s
        waiting = set(self._children)
        bereft: Lost | None = None  # the first that failed because of another
        while waiting or bereft or self._hosts.unready:
            event = self._next_event(deadline)
            if event is None:
                return how_not_started(bereft) if bereft else self._not_in_time(waiting)
            if isinstance(event, StopRequested | ServiceEnded):
                if isinstance(event, StopRequested):
                    self._hosts.ask_to_stop(event.signum)
                return Ending(EXIT_OK)
            lost: Lost | None = None
            if isinstance(event, Died) or (isinstance(event, Reported) and event.child.farewell):
                lost = event.child
            elif isinstance(event, Reported | BegunAgain):  # nobody depends on a draft process
                waiting.discard(event.child)
            elif isinstance(event, HostEnded) and (event.is_needed or event.is_refusal):
                lost = event
            if lost is not None and not lost.is_consequence:
                return how_not_started(lost)
            if lost is not None and bereft is None:
                bereft, deadline = lost, min(deadline, time.monotonic() + _CAUSE_GRACE_S)
        return None

    def _not_in_time(self, waiting: set[Child]) -> Ending:
        late = {child.command.name for child in waiting} | self._hosts.unready
        names = ", ".join(sorted(late))
        limit = f"{self._timeouts.startup_s:g} s"
        return Ending(EXIT_FAILED, f"{names} not ready in time ({limit})", "UNAVAILABLE")

    def _serve(self) -> Ending:
        while True:
            event = self._next_event(None)
            if isinstance(event, ServiceEnded):
                return Ending(EXIT_OK) if event.is_cut else self._drain()
            if isinstance(event, StopRequested) and self._hosts.ask_to_stop(event.signum):
                log.info("stopping; a second signal cuts what runs")
                return self._drain()
            if isinstance(event, HostEnded):
                if event.is_needed:
                    return self._fail(event)
                log.warning("%s; decoding goes on without it", event.detail)
            if isinstance(event, Died) and not self._was_dismissed(event.child):
                return self._fail(event.child)
            # Who gives up is as good as dead, and takes its time to unload what it has loaded.
            if isinstance(event, Reported) and event.child.farewell is not None:
                return self._fail(event.child)

    def _was_dismissed(self, child: Child) -> bool:
        """Rank 0 tells the others to end, perhaps before its supervisor tells theirs."""
        return not self._hosts.leads and child.ended_well and child.command.role == "target"

    def _drain(self) -> Ending:
        """Clean stop: the API process first, so that nothing new arrives, then the nodes."""
        self._drafts.retire()
        self._is_draining = True
        may_go = self._of_role("draft")  # nobody depends on a draft process
        for group, timeout_s in (
            (self._of_role("api"), self._timeouts.drain_s + _DRAIN_MARGIN_S),
            (self._of_role("target"), _TARGET_STOP_GRACE_S),
            (self._of_role("draft"), _DRAFT_STOP_GRACE_S),
        ):
            may_go = [*may_go, *group]
            for child in group:
                child.terminate()
            event = self._await_exit(group, timeout_s, may_go)
            if isinstance(event, Died | HostEnded):
                return self._fail(event.child if isinstance(event, Died) else event)
            if isinstance(event, StopRequested):
                return self._cut(event.signum)
            if group and group[0].command.role == "api":
                self._hosts.tell_end()  # before rank 0 tells its fellows
            for child in group:
                if child.alive:
                    log.warning("%s did not stop within %g s", child.command.name, timeout_s)
                child.kill()
        return Ending(EXIT_OK)

    def _cut(self, signum: int) -> Ending:
        """A second signal. Where no request ran any more it cuts nothing, and the end is good."""
        api = self._api()
        if api is None or not api.alive:
            log.info("a second signal: every request has ended, processes are killed")
            return Ending(EXIT_OK)
        log.warning("a second signal: running requests are cut")
        api.terminate()  # it ends its streams with an error; a third signal kills
        self._await_exit([api], _CUT_GRACE_S, self._children, may_fail=True)
        return Ending(EXIT_OK if api.ended_well else signal_exit(signum))

    def _fail(self, lost: Lost) -> Ending:
        """Fail-stop. The other nodes may hang in a collective with the lost one: kill them."""
        self._drafts.retire()
        if lost.is_consequence and isinstance(lost, Child):  # whoever knows better says so
            self._hosts.tell_failed(lost.describe_end(), is_consequence=True)
        cause = first_cause(
            lost,
            lambda: self._children,
            self._next_event,
            grace_s=_CAUSE_GRACE_S,
            is_draining=self._is_draining,
        )
        self._hosts.tell_failed(cause.detail, is_here=cause.is_here)
        log.info("stopping the service")  # its last line says why
        api = self._api()
        for node in (*self._of_role("draft"), *self._of_role("target")):
            node.kill()
        if api is not None and api.alive:
            api.tell(msgspec.json.encode({"event": "target_lost", "detail": cause.detail}))
            api.terminate()
            self._await_exit([api], _FAILURE_GRACE_S, self._children, may_fail=True)
        return Ending(EXIT_FAILED, f"{cause.detail}; the service has stopped", Unavailable.code)

    # --- parts ------------------------------------------------------------------------------

    def _start(self, command: ChildCommand) -> Child:
        forkserver = self._forkservers.live() if command.preload else None
        link_fds = self._drafts.link_fds(command)
        child = Child(command, self._config, self._control_dir, link_fds, forkserver)
        self._children.append(child)
        self._selector.register(child.ready_fd, selectors.EVENT_READ, child)
        self._drafts.started(child)
        log.debug("started %s", command.name)
        return child

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
    ) -> StopRequested | Died | HostEnded | None:
        """Wait for `group` to be gone, at most `timeout_s`.

        Returns early with a second stop signal, with the loss of a machine that is needed, or with
        the death of a child that failed (unless it `may_fail`) or is not in `may_go`, which must
        name every child told to stop so far: the deaths of an earlier group may still be on their
        way when the last of it is gone.
        """
        deadline = time.monotonic() + timeout_s
        # Of those that died in one look, whoever failed is told by an event yet to be read.
        while any(child.alive for child in group) or self._has_unread_death(group):
            event = self._next_event(deadline)
            if event is None or isinstance(event, StopRequested):
                return event
            if isinstance(event, HostEnded) and event.is_needed and not may_fail:
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
            now = time.monotonic()
            look_again = min(deadline, self._drafts.restart_due(), self._hosts.due(now))
            self._take_hosts_events()
            if self._events:
                break
            if now >= deadline:
                return None
            self._poll(None if look_again == math.inf else max(0.0, look_again - now))
        return self._events.popleft()

    def _poll(self, timeout: float | None) -> None:
        self._tell_states()
        ready = self._selector.select(timeout)
        for key, _ in ready:
            if key.data is self._hosts:
                self._hosts.read(key.fileobj)
        self._take_hosts_events()
        # Reports before deaths: a child that says why it ends usually ends right after.
        for key, _ in ready:
            if isinstance(key.data, Child):
                self._read_reports(key.data)
            elif isinstance(key.data, Forkserver) and not key.data.read():
                self._forget(key.fd)
        if any(key.data is None for key, _ in ready):
            self._read_signals()

    def _take_hosts_events(self) -> None:
        self._events += self._hosts.events
        self._hosts.events.clear()

    def _tell_states(self) -> None:
        latest = {child.command.name: child for child in self._children}
        states = [
            state_of(c, latest.get(c.name), self._drafts.last_word(c)) for c in self._commands
        ]
        self._hosts.tell_states(states)
        self._roster.tell([*states, *self._hosts.other_states()])

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
        self._forkservers.reap()
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
        pids = self._forkservers.known_pids()
        return pids | {child.pid for child in self._children if child.alive}

    def _stop_requested(self, signum: int) -> None:
        now = time.monotonic()
        if now >= self._deaf_until_s:
            self._deaf_until_s = now + _SAME_STOP_S
            self._events.append(StopRequested(signum))

    def _api(self) -> Child | None:
        """On the first machine alone."""
        return next(iter(self._of_role("api")), None)

    def _of_role(self, role: str) -> list[Child]:
        return [child for child in self._children if child.command.role == role]

    def _kill_all(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.close()
        self._forkservers.bury()
