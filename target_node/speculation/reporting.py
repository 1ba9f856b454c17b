"""What the target tells the draft processes: contexts once, then every round as it starts.

A context that is long, or that a draft lost, goes by control in chunks; what was verified since the
last report travels with the next. Nothing here waits: what finds no room is sent again later.

Drafters that read token ids alone hear of a prompt while the target computes it. The round that
ends it is then reported as any other: its last token is an anchor with nothing pending behind it.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace

import numpy as np
import torch

from specserve.sampling.logits_processors import has_processors
from specserve.transport.control.draft_control import Context, SamplingParameters, feature_bytes
from specserve.transport.link.frames import MAX_FRAME_BYTES
from specserve.transport.link.messages import Floats, Numbers, Report, RowReport
from target_node.planning.admission import Admission
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.draft_links import DraftLinks, DraftPeer
from target_node.speculation.feature_cache import FeatureCache, Span
from target_node.speculation.link_streams import LinkStream, LinkStreams
from target_node.speculation.local_drafts import LocalDrafts
from target_node.speculation.round_latency import RoundLatency
from target_node.speculation.table import PushedBlock

# Verified tokens of a row that travel with a report; more go by control, in chunks.
MAX_INLINE, MAX_INLINE_BYTES = 64, MAX_FRAME_BYTES // 4
CHUNK, MAX_CHUNK_BYTES = 256, 8 * 1024 * 1024  # of a row and round that go by control
_REPORT_BYTES = 1024  # of a row, besides its features and what it foresees
_NOTHING = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _KnownRow:
    """A row to report, to whom, and from which position on that draft has not heard of it."""

    row: Row
    peer: DraftPeer
    stream: LinkStream
    start: int
    end: int  # position of the anchor

    def num_known(self) -> int:
        """Minus the tokens that its draft has yet to hear of: who is furthest behind goes first."""
        return self.start - self.end

    @property
    def span(self) -> Span:
        """Positions whose features go with the report."""
        return self.row.sequence.block_ids, self.start, self.end


class OutcomeReports:
    """Keeps all drafts told; knows from `LinkStreams` what each was told already."""

    def __init__(
        self,
        links: DraftLinks,
        streams: LinkStreams,
        admission: Admission,
        features: FeatureCache | None,
        round_latency: RoundLatency,
    ) -> None:
        self._links = links
        self._streams = streams
        self._admission = admission
        self._features = features
        token_bytes = 4 * max(1, 0 if features is None else features.size)
        # A round's own tokens travel with its report, however large they are.
        self._max_inline = min(MAX_INLINE, MAX_INLINE_BYTES // token_bytes)
        self._max_inline = max(self._max_inline, admission.gamma + 1)
        self._chunk = max(1, min(CHUNK, MAX_CHUNK_BYTES // token_bytes))
        self.round_latency = round_latency

    def peer_of(self, sequence: Sequence) -> DraftPeer | None:
        return self._links.peer_of(sequence.request.request_id)

    def send_context(self, sequence: Sequence) -> None:
        """One chunk of what a draft has to know before reports make sense to it."""
        peer = self.peer_of(sequence)
        if peer is None or not self._admission.wants_drafts(sequence):
            return
        stream = self._streams.of(sequence)
        start = self._told_up_to(stream, peer)
        missing = self._end(sequence) - start
        if (missing <= self._max_inline and sequence.is_decoding) or missing <= 0:
            return
        end = start + min(missing, self._chunk)
        (features,) = self._on_host([(sequence.block_ids, start, end)])
        message = Context(
            epoch=peer.epoch,
            stream=stream.number,
            start=start,
            token_ids=sequence.token_ids[start:end],
            features=feature_bytes(features),
        )
        if self._links.tell(peer, message):
            stream.num_sent = end

    def lacks(self, rows: Rows[Row]) -> bool:
        """Whether a draft has yet to hear more of a decoding row than travels with a report."""
        decoding = [row.sequence for row in rows if row.sequence.is_decoding]
        return any(self._num_missing(sequence) > self._max_inline for sequence in decoding)

    def _num_missing(self, sequence: Sequence) -> int:
        peer = self.peer_of(sequence)
        if peer is None or not self._admission.wants_drafts(sequence):
            return 0
        return self._end(sequence) - self._streams.num_sent(sequence, peer.epoch)

    def _end(self, sequence: Sequence) -> int:
        """Up to which position there is something to tell: the anchor, or what has features."""
        return len(sequence.token_ids) - 1 if self._features is None else sequence.num_computed

    def _told_up_to(self, stream: LinkStream, peer: DraftPeer) -> int:
        """From which position on the peer has to be told; who was told before may forget."""
        if stream.epoch != peer.epoch:
            self._links.free(stream.epoch, stream.number)
        start = stream.told_up_to(peer.epoch)
        if not stream.knows_sampling:
            stream.knows_sampling = self._send_sampling(stream, peer)
        return start

    def _send_sampling(self, stream: LinkStream, peer: DraftPeer) -> bool:
        """Whether that is done, or there is nothing to tell."""
        state = self._admission.state(stream.sequence)
        if not has_processors(state):
            return True
        message = SamplingParameters(
            epoch=peer.epoch,
            stream=stream.number,
            num_prompt=stream.sequence.num_prompt,
            end_token_ids=state.end_token_ids,
            sampling=state.params,
            grammar=stream.sequence.request.grammar,
        )
        return self._links.tell(peer, message)

    def report(
        self,
        rows: Rows[Row],
        blocks: Mapping[Sequence, PushedBlock],
        local: LocalDrafts,
        *,
        awaits: bool = False,
    ) -> set[Sequence]:
        """The round that starts: its rows' blocks were pushed, or drafted here, or are absent.

        Whose drafts hear of it is returned: not of rows that they are still being told of.
        """
        # Where the link had no room for all, those left out come first.
        known_rows = sorted(self._known_rows(rows), key=_KnownRow.num_known)
        read = self._on_device if self._links.carry_tensors else self._on_host
        features = read([each.span for each in known_rows])
        reports: dict[int, list[tuple[_KnownRow, RowReport]]] = {}  # by epoch
        for each, own in zip(known_rows, features, strict=True):
            block = blocks.get(each.row.sequence)
            report = self._row_report(each, own, block)
            if awaits:
                report = replace(report, awaits=True)
            elif block is None:
                top_k = local.draft_top_k(each.row, on_device=self._links.carry_tensors)
                report = replace(report, draft_top_k=top_k)
            reports.setdefault(each.peer.epoch, []).append((each, report))
        num_decoding = sum(row.sequence.is_decoding for row in rows)
        num_tokens = sum(row.num_tokens for row in rows)
        self.round_latency.reported(num_tokens, is_mixed=num_decoding < len(rows))
        # How long prompts take that nobody decodes beside, no round before can tell.
        round_latency_s = self.round_latency.seconds if num_decoding else 0.0
        heard: set[Sequence] = set()
        for of_peer in reports.values():
            for frame in _frames(of_peer):
                if self._send(frame, round_latency_s):
                    heard.update(each.row.sequence for each, _ in frame)
        return heard

    def _known_rows(self, rows: Rows[Row]) -> Iterator[_KnownRow]:
        """Those whose draft knows all but what goes with the report; the others are being told."""
        for row in rows:
            sequence = row.sequence
            peer = self.peer_of(sequence)
            if peer is None or not self._admission.may_go_on(row):
                continue
            end = self._end(sequence)
            if end < len(sequence.token_ids) - 1:
                continue  # features of the prompt are about to be computed
            stream = self._streams.of(sequence)
            start = min(self._told_up_to(stream, peer), end)
            if end - start <= self._max_inline:
                yield _KnownRow(row, peer, stream, start, end)

    def _send(self, frame: Rows[tuple[_KnownRow, RowReport]], round_latency_s: float) -> bool:
        """Whether the link had room."""
        reports = [report for _, report in frame]
        if not frame[0][0].peer.end.send(
            Report(reports, round_latency_s, self.round_latency.sent_s)
        ):
            return False
        for each, _ in frame:
            each.stream.num_sent = max(each.stream.num_sent, each.end)
        return True

    def _row_report(
        self, known: _KnownRow, features: Numbers, block: PushedBlock | None
    ) -> RowReport:
        row, sequence = known.row, known.row.sequence
        drafting = self._admission.to_draft(row)
        state = drafting.state
        return RowReport(
            stream=known.stream.number,
            round=sequence.num_rounds,
            seed=state.seed_bits,
            sample_index=state.sample_index,
            method=drafting.method.value,
            temperature=0.0 if state.is_greedy else state.temperature,
            start=known.start,
            token_ids=np.array(sequence.token_ids[known.start :], dtype=np.int32),
            features=features,
            block=np.array(row.drafted, dtype=np.int32) if row.verify_len else _NOTHING,
            speculation_id=0 if block is None else block.speculation_id,
        )

    def _on_host(self, spans: Rows[Span]) -> list[Floats]:
        """Features of each span, [n, H]; all of them leave the device at once."""
        lengths = [end - start for _, start, end in spans]
        if self._features is None or not sum(lengths):
            width = 0 if self._features is None else self._features.size
            return [np.empty((length, width), dtype=np.float32) for length in lengths]
        rows = self._features.read(spans).to(torch.float32).cpu().numpy()
        if len(spans) == 1:
            return [rows]
        return np.split(rows, np.cumsum(lengths)[:-1])

    def _on_device(self, spans: Rows[Span]) -> Rows[Numbers]:
        """The same where they are."""
        lengths = [end - start for _, start, end in spans]
        if self._features is None or not sum(lengths):
            return self._on_host(spans)  # there are none
        return self._features.read(spans).to(torch.float32).split(lengths)


def _frames(
    reports: Rows[tuple[_KnownRow, RowReport]],
) -> Iterator[list[tuple[_KnownRow, RowReport]]]:
    """As many rows together as a frame takes; a row that is larger has one of its own."""
    part: list[tuple[_KnownRow, RowReport]] = []
    num_bytes = 0
    for known, report in reports:
        row_bytes = _REPORT_BYTES + report.features.nbytes
        if report.draft_top_k is not None:
            row_bytes += report.draft_top_k.slot_ids.nbytes + report.draft_top_k.slot_scores.nbytes
        if part and num_bytes + row_bytes > MAX_FRAME_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append((known, report))
        num_bytes += row_bytes
    if part:
        yield part
