"""What is known of each stream: its context in the drafter, what has arrived for it, its round.

A context is derived state. Verified tokens arrive with reports and, where those leave a hole, on
demand; they enter the context in order, a bounded number at a time. Most drafters also hold the
pending tokens, once for all branches; as they are verified, entries made of features take their
place, or, where a drafter reads token ids alone, stand if the tokens are the same.

Knows neither outcomes nor blocks, and no messages but the report. What a drafter raises is counted
and logged, and in the end too much.
"""

import bisect
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from draft_node.draft_slot import DraftSlot, Hole, Segment, due_hole, num_equal
from draft_node.stream_sampling import StreamSampling
from specserve.drafters.context import ContextCapacity
from specserve.drafters.protocol import ContextUpdate, Drafter
from specserve.errors import Exhausted
from specserve.grammars.compiler import GrammarCompiler
from specserve.transport.link.messages import Numbers, RowReport

MAX_FAILURES = 16  # in a row, then the process is of no use

log = logging.getLogger(__name__)


class DraftingFailed(Exception):
    """The drafter has raised `MAX_FAILURES` times in a row."""


class Failures:
    """One count for contexts and blocks: either costs what it was meant for, nothing else."""

    def __init__(self) -> None:
        self.total = 0
        self._in_a_row = 0

    def count(self, error: Exception, what: str) -> None:
        """To be called while `error` is handled. Raises `DraftingFailed` once there are too many.

        Logs at powers of two only: a broken drafter must not become a flood of log lines.
        """
        self.total += 1
        self._in_a_row += 1
        if self.total & (self.total - 1) == 0:
            log.error("%s failed, time %d", what, self.total, exc_info=error)
        if self._in_a_row >= MAX_FAILURES:
            raise DraftingFailed(f"{what}: {MAX_FAILURES} times in a row") from error

    def end(self) -> None:
        """Something worked."""
        self._in_a_row = 0


MAX_STREAMS = 4096  # the target's word that a stream has ended may be lost, too
IDLE_ROUNDS = 8  # a stream not heard of while all could report so often may lose its context

_LEAST_WEIGHT = 16  # tokens that a segment counts as at least: it takes memory itself
_TRIES = 2  # of starved streams for one that ends: more than one, as contexts differ in length


class DraftSlots:
    """The live streams of one attachment."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        dtype: torch.dtype,
        device: torch.device,
        capacity: ContextCapacity | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`capacity`: of the drafter's contexts; None where nobody will ask what they lack.

        `grammars`: who compiles those of requests; None: they are not known of.
        """
        self._drafter = drafter
        self.grammars = grammars
        self._capacity = capacity
        # Tokens of segments. A target that sends what nobody asked for must not fill the memory.
        self._num_waiting, self._most_waiting = 0, math.inf
        if capacity is not None:
            self._most_waiting = 2 * capacity.num_tokens or MAX_STREAMS * capacity.max_len
        self._dtype = dtype
        self._device = device
        self.failures = Failures()
        self._streams: dict[int, DraftSlot] = {}
        self._num_reports = 0  # of rows

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[DraftSlot]:
        return iter(self._streams.values())

    def find(self, number: int) -> DraftSlot | None:
        return self._streams.get(number)

    # --- what arrives ------------------------------------------------------------------------

    def take_report(self, row: RowReport) -> DraftSlot | None:
        """The stream, at its new round; None for a report older than one that came before."""
        self._num_reports += 1
        stream = self._hear(row.stream)
        if stream.report is not None and row.round < stream.report.round:
            return None
        stream.report = row
        for round_id in [r for r in stream.num_branches if r < row.round]:
            del stream.num_branches[round_id]
        self._add(stream, Segment(row.start, row.token_ids[:-1], row.features))
        return stream

    def take_context(self, number: int, segment: Segment) -> None:
        """Verified tokens outside of reports: a prompt, or an answer to a hole."""
        self._add(self._hear(number), segment)

    def take_sampling(self, number: int, sampling: StreamSampling) -> None:
        """The request's own."""
        self._hear(number).sampling = sampling

    def free(self, numbers: Iterable[int]) -> None:
        """These have ended. For each, a few starved ones may try again, those that waited longest.

        Not all of them: each reads its whole context only to find out that there is no room.
        """
        num_ended = 0
        for number in numbers:
            if (stream := self._streams.pop(number, None)) is not None:
                self._forget_segments(stream)
                self._drafter.free(number)
                num_ended += 1
        starved = (stream for stream in self._streams.values() if stream.is_starved)
        for stream in list(islice(starved, _TRIES * num_ended)):
            stream.is_starved = False

    def surplus(self) -> list[int]:
        """Streams beyond `MAX_STREAMS`, to be freed: those not heard of for longest."""
        num_surplus = len(self._streams) - MAX_STREAMS
        if num_surplus <= 0:
            return []
        oldest = sorted(self._streams.values(), key=lambda stream: stream.last_heard)
        return [stream.number for stream in oldest[:num_surplus]]

    def clear(self) -> None:
        """Forget everything: the target starts anew."""
        self.free(list(self._streams))

    def holes(self, now_s: float) -> list[Hole]:
        """What has to be asked for now: the first hole of each stream that has a round."""
        return [hole for stream in self._streams.values() if (hole := due_hole(stream, now_s))]

    def _hear(self, number: int) -> DraftSlot:
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = DraftSlot(number)
        stream.last_heard = self._num_reports
        return stream

    def _add(self, stream: DraftSlot, segment: Segment) -> None:
        if not len(segment.token_ids) or stream.is_starved:
            return
        bisect.insort(stream.segments, segment, key=lambda part: part.start)
        self._num_waiting += _weight(segment)
        if self._num_waiting > self._most_waiting:
            for each in self._streams.values():  # seldom, and who is there still asks again
                self._forget_segments(each)

    def _forget_segments(self, stream: DraftSlot) -> None:
        self._num_waiting -= sum(map(_weight, stream.segments))
        stream.segments.clear()

    # --- contexts ----------------------------------------------------------------------------

    def extend(self, max_tokens: int) -> int:
        """Enter what has arrived into the contexts, at most `max_tokens`; how many it were."""
        room = max_tokens
        while room > 0:
            pieces: list[tuple[DraftSlot, Segment]] = []
            for stream in list(self._streams.values()):
                piece = self._next_piece(stream, room)
                if piece is not None:
                    pieces.append((stream, piece))
                    room -= len(piece.token_ids)
            if not pieces:
                break
            self._enter(pieces)
        return max_tokens - room

    def provide(self, pending: Sequence[tuple[DraftSlot, Sequence[int]]]) -> None:
        """Enter pending tokens, from the anchor on, if the drafter can hold them."""
        if not self._drafter.holds_pending_tokens:
            return
        pieces: list[tuple[DraftSlot, Segment]] = []
        for stream, token_ids in pending:
            assert stream.report is not None
            position = stream.report.position
            known = position + num_equal(stream.token_ids[position:], token_ids)
            missing = np.array(token_ids[known - position :], dtype=np.int32)
            if len(missing):
                self._truncate(stream, known)
                pieces.append((stream, Segment(known, missing, np.empty((0, 0), np.float32))))
        if pieces:
            self._enter(pieces, is_verified=False)

    def _next_piece(self, stream: DraftSlot, room: int) -> Segment | None:
        """At most `room` tokens that continue the context; what is known already is skipped."""
        while room > 0 and stream.segments and stream.segments[0].start <= stream.num_verified:
            segment = stream.segments[0]
            if self._drafter.feature_size and segment.end > stream.num_verified:
                self._truncate(stream, stream.num_verified)  # features take the place of guesses
            known = stream.token_ids[segment.start :]
            end = segment.start + num_equal(known, segment.token_ids.tolist())
            if end < min(segment.end, len(stream.token_ids)):
                self._truncate(stream, end)
            stream.num_verified = max(stream.num_verified, end)
            if end == segment.end:
                self._num_waiting -= _weight(stream.segments.pop(0))
                continue
            return segment.within(end, min(end + room, segment.end))
        return None

    def _truncate(self, stream: DraftSlot, length: int) -> None:
        if length < len(stream.token_ids):
            self._drafter.truncate(stream.number, length)
            del stream.token_ids[length:]
            stream.num_verified = min(stream.num_verified, length)

    def _enter(self, pieces: list[tuple[DraftSlot, Segment]], *, is_verified: bool = True) -> None:
        """If they do not fit together, those that fit alone; the others are starved."""
        try:
            self._drafter.extend(self._as_update(pieces, with_features=is_verified))
        except Exhausted as error:
            if len(pieces) > 1:
                for stream, piece in pieces:
                    # Room for one of them may have cost another its context.
                    if piece.start == len(stream.token_ids):
                        self._enter([(stream, piece)], is_verified=is_verified)
            elif self._evict_for(pieces[0][0]):
                self._enter(pieces, is_verified=is_verified)
            else:
                self._starve(pieces[0][0], error)
            return
        except Exception as error:  # noqa: BLE001
            self.failures.count(error, "reading a context")
            for stream, _ in pieces:
                self._drop_context(stream)
            return
        for stream, piece in pieces:
            stream.token_ids += piece.token_ids.tolist()
            if is_verified:
                stream.num_verified = piece.end

    def _as_update(
        self, pieces: list[tuple[DraftSlot, Segment]], *, with_features: bool
    ) -> ContextUpdate:
        segments = [piece for _, piece in pieces]
        token_ids = torch.from_numpy(np.concatenate([part.token_ids for part in segments]))
        features = None
        if self._drafter.feature_size and with_features:
            features = self._joined([part.features for part in segments])
        return ContextUpdate(
            rows=[stream.number for stream, _ in pieces],
            starts=[part.start for part in segments],
            counts=[len(part.token_ids) for part in segments],
            token_ids=token_ids.to(self._device, torch.int64),
            features=features,
        )

    def _joined(self, parts: Sequence[Numbers]) -> torch.Tensor:
        """Features of all parts, [N, H]: prompts come by the host, reports may not."""
        on_host = [part for part in parts if isinstance(part, np.ndarray)]
        if len(on_host) == len(parts):  # one copy to the device for all
            return torch.from_numpy(np.concatenate(on_host)).to(self._device, self._dtype)
        tensors = [torch.as_tensor(part).to(self._device, self._dtype) for part in parts]
        return torch.cat(tensors)

    # --- memory ------------------------------------------------------------------------------

    def _evict_for(self, stream: DraftSlot) -> bool:
        """Free the context that was not heard of for longest; False if none is idle.

        Every row of a round reports for itself, and once more where the target waits: a stream is
        idle only after several rounds of all.
        """
        last_round = self._num_reports - IDLE_ROUNDS * len(self._streams)
        idle = [
            other
            for other in self._streams.values()
            if other.token_ids and other is not stream and other.last_heard < last_round
        ]
        if not idle:
            return False
        self._drop_context(min(idle, key=lambda other: other.last_heard))
        return True

    def _starve(self, stream: DraftSlot, error: Exhausted) -> None:
        if not any(other.is_starved for other in self._streams.values()):
            lengths = [other.length for other in self._streams.values()]
            why = error if self._capacity is None else self._capacity.shortage(lengths)
            log.warning("a row is decoded without drafts: %s", why)
        self._drop_context(stream)
        stream.is_starved = True
        self._streams[stream.number] = self._streams.pop(stream.number)  # others try before it

    def _drop_context(self, stream: DraftSlot) -> None:
        """Its branch numbers stay: they may not be used again even so."""
        self._drafter.free(stream.number)
        stream.token_ids.clear()
        self._forget_segments(stream)
        stream.num_verified = 0
        stream.report = None


def _weight(segment: Segment) -> int:
    return max(_LEAST_WEIGHT, len(segment.token_ids))
