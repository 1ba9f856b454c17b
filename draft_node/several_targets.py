"""The loop of a draft process that serves several targets: one `DraftNode` each, in fair shares.

Every turn hears all of them, but for who has just taken long to be heard, then does one piece of
work of the one that has had the least of the device's time. A target that is gone loses what is
kept for it, and is asked to let this process attach until it is back, in an epoch of its own.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from draft_node.draft_slots import DraftingFailed
from draft_node.fair_shares import FairShares
from draft_node.node import IDLE_S, SILENCE, DraftNode
from specserve.errors import Unsupported
from specserve.transport.link.words import OwnWords
from specserve.transport.network_link.connection import TargetConnection, close_all, wait_for_any

FAILING_S = 60.0  # that a target is left alone whose drafts fail, and no other one's
# A target that took so long to be heard is heard again after as many times as long: others wait.
LONG_S, PAUSE = 0.001, 2
LOST_S = 1.0  # that nothing reaches a target until its streams are forgotten
_LEAST_SLEEP_S = 0.001  # that sockets can be waited for

log = logging.getLogger(__name__)


@dataclass
class TargetWords:
    """`OwnWords` for one target: only it hears them."""

    heartbeat_ns: int = 0
    draft_pid: int = 0
    draft_epoch: int = 0


@dataclass(frozen=True)
class Served:
    """One target."""

    name: str  # HOST:PORT
    node: DraftNode
    connection: TargetConnection


class SeveralTargets:
    """Those of one draft process."""

    def __init__(self, targets: Sequence[Served], words: OwnWords) -> None:
        """`words`: for the supervisor, which sees that this process is alive."""
        self.is_stopping = False
        self._targets = list(targets)
        self._shares = FairShares(len(self._targets))
        self._words = words
        self._hear_again_s = [0.0] * len(self._targets)  # by `time.perf_counter`
        self._failing: set[str] = set()  # targets whose drafts have failed too often

    def meet(self, timeout_s: float) -> None:
        """Wait for every target's answer, but not for those that are not there.

        Raises Unsupported where each of them says that this process does not fit.
        """
        deadline_s = time.monotonic() + timeout_s
        while not all(t.node.is_attached or t.node.refusal for t in self._targets):
            if time.monotonic() > deadline_s or self.is_stopping:
                break
            if not self.turn():
                self._rest()
        refusals = [t.node.refusal for t in self._targets]
        problems = [each.problem for each in refusals if each is not None and not each.may_pass]
        if len(problems) == len(self._targets):
            why = "; ".join(dict.fromkeys(problems))
            raise Unsupported(f"--attach-to: no target takes this draft node: {why}")
        for target in self._targets:
            if not (target.node.is_attached or target.node.refusal):
                log.info(
                    "no target answers at %s, which --attach-to takes for the --draft-address of "
                    "a service; it is asked until one does", target.name,
                )  # fmt: skip

    def run(self) -> None:
        """Until told to stop. Raises `DraftingFailed` where the drafter fails for everybody."""
        try:
            while not self.is_stopping:
                if not self.turn():
                    self._rest()
        finally:
            self.close()

    def turn(self) -> bool:
        """Hear all, work for one; False if there was nothing to do for anybody."""
        self._words.heartbeat_ns = time.monotonic_ns()
        for user, target in enumerate(self._targets):
            began_s = time.perf_counter()
            if began_s < self._hear_again_s[user]:
                target.node.beat()
                continue
            self._hear(target)
            ended_s = time.perf_counter()
            self._shares.charge(user, ended_s - began_s)
            if ended_s - began_s > LONG_S:
                self._hear_again_s[user] = ended_s + PAUSE * (ended_s - began_s)
        for user in self._shares.order():
            began_s = time.perf_counter()
            if self._work_for(self._targets[user]):
                self._shares.serve(user, time.perf_counter() - began_s)
                return True
            self._shares.rest(user)
            self._shares.charge(user, time.perf_counter() - began_s)  # looking for it took that
        return False

    def _work_for(self, target: Served) -> bool:
        """False if there was nothing to do. Who breaks the drafter breaks it for itself alone."""
        try:
            return target.node.work()
        except DraftingFailed as error:
            self._failing.add(target.name)
            if all(t.name in self._failing for t in self._targets if t.node.is_attached):
                raise
            log.error("%s is left alone for %g s: %s", target.name, FAILING_S, error)
            target.node.leave(FAILING_S)
            return True

    def close(self) -> None:
        """Say so to all."""
        self._words.draft_pid = 0
        for target in self._targets:
            target.node.close()
        close_all([target.connection for target in self._targets])

    def _hear(self, target: Served) -> None:
        target.node.hear()
        if target.node.is_attached:
            if target.connection.lost_s > LOST_S:
                log.warning("%s is gone: its streams are forgotten", target.name)
                target.node.detach()
        else:
            target.connection.drop()  # frames of an epoch that is over

    def _rest(self) -> None:
        """The longer the more time has passed since the last report of any target."""
        attached = [t.node.silent_s() for t in self._targets if t.node.is_attached]
        sleep_s = IDLE_S
        if attached:
            sleep_s = min(IDLE_S, max(_LEAST_SLEEP_S, SILENCE * min(attached)))
        wait_for_any([target.connection for target in self._targets], sleep_s)
