"""The draft process's loop: take what has arrived, let contexts catch up, draft a batch, repeat.

A draft batch is the longest thing that happens between two looks at the link, so a newer report
costs at most the rest of one. Nothing that arrives can raise; a drafter that is broken for good
ends the process, which its supervisor then starts again.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from draft_node.draft_slot import Segment
from draft_node.draft_slots import DraftSlots
from draft_node.prespeculation.prespeculation import PreSpeculation
from draft_node.stream_sampling import StreamSampling
from specserve.telemetry import SparseLog
from specserve.transport.control.draft_control import (
    Attach,
    Attached,
    Context,
    Detached,
    DraftControl,
    Free,
    Refused,
    SamplingParameters,
    ToDraft,
    Wanted,
    context_arrays,
)
from specserve.transport.link.ends import DraftLinkEnd
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.words import OwnWords

ATTACH_AGAIN_S = 0.25  # until the target answers
REFUSED_S = 1.0  # from a refusal until it is asked again: it may have been started anew
IDLE_S = 0.02  # longest sleep when nothing comes: also the period of the heartbeat
POLL_S = 50e-6  # shortest sleep between looks at the link
SILENCE = 1 / 100  # of the time since the last report is slept: what a report may wait, too
_LEAST_WAIT_S = 0.001  # that a socket can be waited for
REPORT_S = 60.0  # between lines of statistics

log = logging.getLogger(__name__)


class Reach(NamedTuple):
    """What a drafter can read: ids of tokens below `vocab_size`, at places below `max_positions`.

    Whoever says that there are more is not the target of this model, whatever it is.
    """

    vocab_size: int
    max_positions: int

    def obstacle(self, message: Attached, target: str) -> str | None:
        """Why `target` cannot be drafted for, if it cannot."""
        for key, theirs, ours in (
            ("model.target", message.vocab_size, self.vocab_size),
            ("model.max_model_len", message.max_positions, self.max_positions),
        ):
            if theirs > ours:
                what = "tokens in the vocabulary" if key == "model.target" else "positions"
                problem = f"{theirs} {what} at {target}, {ours} on the draft node"
                return f"{key}: {problem}; start both with the same model"
        return None


class DraftNode:
    """One draft process. `open_link` makes the link's end that fits the target's limits."""

    def __init__(
        self,
        introduction: Attach,
        *,
        streams: DraftSlots,
        prespeculation: PreSpeculation,
        control: DraftControl,
        words: OwnWords,
        open_link: Callable[[LinkLimits], DraftLinkEnd],
        max_extension: int = 512,
    ) -> None:
        """`introduction` says who this is; contexts grow by `max_extension` tokens a turn."""
        self.is_stopping = False
        self.target = "the target"  # its name, where it is one of several
        self.reach: Reach | None = None  # None: the target is known to keep to it
        self.refusal: Refused | None = None  # the target's latest answer, if it was one
        self.prespeculation = prespeculation
        self.streams = streams
        self._introduction = introduction
        self._control = control
        self._words = words  # carry the heartbeat
        self._open_link = open_link
        self._max_extension = max_extension
        # Of what a target says; others are served besides.
        self._attachments, self._refusals, self._misfits = (SparseLog(log) for _ in range(3))
        self._link: DraftLinkEnd | None = None
        self._limits: LinkLimits | None = None
        self._attach_s = 0.0
        self._away_until_s = 0.0  # what the target says is not heard before
        self._num_asked = 0
        self._heard_s = 0.0
        self._report_s = time.monotonic() + REPORT_S

    def run(self) -> None:
        """Until SIGTERM. Raises `DraftingFailed`."""
        try:
            while not self.is_stopping:
                if not self.step():
                    self._rest()
            log.debug("%s", self.prespeculation.cache.statistics)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the target."""
        self._words.draft_pid = 0  # it is leaving: ending a process takes a second
        if self._link is not None:
            self._link.close()

    @property
    def is_attached(self) -> bool:
        return self._link is not None

    def step(self) -> bool:
        """One turn of the loop; False if there was nothing to do."""
        self.hear()
        return self.work()

    def hear(self) -> None:
        """Take what has arrived, and say that this process is alive."""
        self.beat()
        messages = self._control.receive()
        epochs = [place for place, each in enumerate(messages) if isinstance(each, Attached)]
        if epochs:  # nothing counts that was said before the latest
            messages = messages[epochs[-1] :]
        for message in messages:
            if not isinstance(message, Free):
                self._handle(message)
        if self._link is None:
            self._ask_to_attach()
            return
        for report in self._link.receive():
            self._heard_s = time.monotonic()
            self.prespeculation.take_report(report)
        # Last: a report that was sent before its stream ended must not bring it back to life. One
        # that comes even later does, until the target is asked for what it lacks.
        for message in messages:
            if isinstance(message, Free):
                self._handle(message)
        self._free(self.streams.surplus())

    def beat(self) -> None:
        """Say that this process is alive."""
        self._words.heartbeat_ns = time.monotonic_ns()

    def work(self) -> bool:
        """Extend contexts and draft a batch; False if there was nothing to do."""
        if self._link is None:
            return False
        num_entered = self.streams.extend(self._max_extension)
        self._ask_for_holes()
        # Contexts first, but never for long: rounds of other streams go on meanwhile.
        return self.prespeculation.step() or num_entered > 0

    def detach(self) -> None:
        """Forget the target, which is gone or knows nothing of this draft; it is asked anew."""
        if self._link is None:
            return
        self._link.close()
        self._link = None
        self.prespeculation.free([stream.number for stream in self.streams])
        self.streams.clear()
        self._words.draft_epoch = 0
        self._num_asked = 0

    def leave(self, seconds: float) -> None:
        """The target cannot be drafted for: it is left, and asked again after so long."""
        self.detach()
        self._words.draft_pid = 0
        self._attach_s = self._away_until_s = time.monotonic() + seconds
        self.streams.failures.end()

    def silent_s(self) -> float:
        """For how long no report has come."""
        return time.monotonic() - self._heard_s

    # --- what arrives ------------------------------------------------------------------------

    def _handle(self, message: ToDraft) -> None:
        match message:
            case Attached():
                self._attach(message)
            case Refused():
                self._be_refused(message)
            case Detached():
                self.detach()
            case Context() | SamplingParameters() | Free() if (
                self._link is None or message.epoch != self._link.epoch
            ):
                log.debug("dropped a message of epoch %d", message.epoch)
            case Context():
                self._take_context(message)
            case SamplingParameters():
                self._take_sampling(message)
            case Free(streams=streams):
                self._free(streams)

    def _free(self, streams: Sequence[int]) -> None:
        self.prespeculation.free(streams)
        self.streams.free(streams)

    def _attach(self, message: Attached) -> None:
        """A new epoch: nothing of the old one counts.

        What the ring holds is left there: frames of older epochs are skipped, and a report of this
        one may have overtaken its announcement.
        """
        if time.monotonic() < self._away_until_s:
            return
        problem = None if self.reach is None else self.reach.obstacle(message, self.target)
        if problem is not None:
            self._be_refused(Refused(problem=problem))
            return
        self._limits = LinkLimits(
            vocab_size=message.vocab_size,
            gamma=self._introduction.gamma,
            feature_size=self._introduction.feature_size,
            max_positions=message.max_positions,
            max_rows=message.max_rows,
            max_kept=message.max_kept,
        )
        self.refusal = None
        if self._link is not None:
            self._link.epoch = None  # leaves what belongs to the old one
        self._link = self._open_link(self._limits)
        self._link.epoch = message.epoch
        self.streams.clear()
        self.prespeculation.attach(
            self._link.send,
            message.epoch,
            message.max_positions,
            on_device=self._link.carries_tensors,
        )
        self._words.draft_epoch = message.epoch
        self._attachments.log(logging.INFO, f"attached to {self.target} in epoch {message.epoch}")

    def _be_refused(self, message: Refused) -> None:
        if message != self.refusal:
            level = logging.INFO if message.may_pass else logging.ERROR
            self._refusals.log(level, f"not attached to {self.target}: {message.problem}")
        self.refusal = message
        self.detach()
        self._attach_s = time.monotonic() + REFUSED_S

    def _take_context(self, message: Context) -> None:
        assert self._limits is not None
        arrays = context_arrays(message, self._limits)
        if arrays is None:
            self._misfits.warning(f"dropped a context of stream {message.stream} that fits nothing")
            return
        self.streams.take_context(message.stream, Segment(message.start, *arrays))

    def _take_sampling(self, message: SamplingParameters) -> None:
        assert self._limits is not None
        sampling = StreamSampling.of(message, self._limits.vocab_size, self.streams.grammars)
        if sampling is None:
            problem = f"dropped sampling parameters of stream {message.stream}: unknown tokens"
            self._misfits.warning(problem)
            return
        self.streams.take_sampling(message.stream, sampling)

    # --- what is asked -----------------------------------------------------------------------

    def _ask_to_attach(self) -> None:
        now_s = time.monotonic()
        if now_s < self._attach_s:
            return
        self._attach_s = now_s + ATTACH_AGAIN_S
        self._words.draft_pid = os.getpid()
        self._control.send(replace(self._introduction, repetition=self._num_asked))
        self._num_asked += 1

    def _ask_for_holes(self) -> None:
        assert self._link is not None
        for hole in self.streams.holes(time.monotonic()):
            self._control.send(
                Wanted(
                    draft=self._introduction.draft,
                    epoch=self._link.epoch or 1,
                    stream=hole.stream,
                    start=hole.start,
                )
            )

    def _rest(self) -> None:
        """Nothing to do: sleep, the longer the more time has passed without a report.

        Looks at full pace cost .4 of a core, which others need as soon as nobody decodes here.
        """
        sleep_s = min(IDLE_S, max(POLL_S, SILENCE * self.silent_s()))
        if self._link is None or sleep_s >= _LEAST_WAIT_S:
            self._control.wait(sleep_s)  # ends with a message
        elif self._link.is_empty():
            time.sleep(sleep_s)
        if log.isEnabledFor(logging.DEBUG) and time.monotonic() > self._report_s:
            self._report_s = time.monotonic() + REPORT_S
            log.debug("%s", self.prespeculation.cache.statistics)
