"""What the target tells the draft processes: contexts once, then every round as it starts.

A context that is long, or that a draft lost, goes by control in chunks; what was verified since the
last report travels with the next. Nothing here waits: what finds no room is sent again later.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace

import numpy as np
import torch

from specserve.link.messages import Report, RowReport
from specserve.wire.draft_control import Context
from target_node.admission import Admission
from target_node.draft_links import DraftLinks, DraftPeer
from target_node.feature_cache import FeatureCache
from target_node.lead import Lead
from target_node.local_drafts import LocalDrafts
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation_table import PushedBlock
from target_node.streams import Stream, Streams

MAX_INLINE = 64  # verified tokens of a row that travel with a report; more go by control, in chunks
CHUNK = 256  # tokens a round and row that go by control
_NOTHING = np.empty(0, dtype=np.int32)


class Reporter:
    """Keeps all drafts told; knows from `Streams` what each was told already."""

    def __init__(
        self,
        links: DraftLinks,
        streams: Streams,
        admission: Admission,
        features: FeatureCache | None,
    ) -> None:
        self._links = links
        self._streams = streams
        self._admission = admission
        self._features = features
        self.lead = Lead()

    def peer_of(self, sequence: Sequence) -> DraftPeer | None:
        return self._links.peer_of(sequence.request.request_id)

    def send_context(self, sequence: Sequence) -> None:
        """One chunk of what a draft has to know before reports make sense to it."""
        peer = self.peer_of(sequence)
        if peer is None or sequence.request.max_verify_len == 0:
            return
        stream = self._streams.of(sequence)
        start = self._told(stream, peer)
        missing = sequence.num_computed - start
        if (missing <= MAX_INLINE and sequence.is_decoding) or missing <= 0:
            return
        end = start + min(missing, CHUNK)
        message = Context(
            epoch=peer.epoch,
            stream=stream.number,
            start=start,
            token_ids=sequence.token_ids[start:end],
            features=self._read(sequence, start, end).tobytes(),
        )
        if self._links.tell(peer, message):
            stream.num_sent = end

    def _told(self, stream: Stream, peer: DraftPeer) -> int:
        """From which position on the peer has to be told; who was told before may forget."""
        if stream.epoch != peer.epoch:
            self._links.free(stream.epoch, stream.number)
        return stream.told(peer.epoch)

    def report(
        self,
        rows: Rows[Row],
        blocks: Mapping[Sequence, PushedBlock],
        local: LocalDrafts,
        *,
        awaits: bool = False,
    ) -> None:
        """The round that starts: its rows' blocks were pushed, or drafted here, or are absent."""
        by_peer: dict[int, tuple[DraftPeer, list[RowReport], list[Stream]]] = {}
        for row in rows:
            peer = self.peer_of(row.sequence)
            if peer is None or not self._admission.may_speculate(row):
                continue
            stream = self._streams.of(row.sequence)
            start = self._told(stream, peer)
            if row.sequence.num_computed - start > MAX_INLINE:
                continue  # still being told by control
            report = self._row_report(row, stream.number, start, blocks.get(row.sequence))
            if awaits:
                report = replace(report, awaits=True)
            elif row.sequence not in blocks:
                report = replace(report, foresight=local.foresight(row))
            _, reports, streams = by_peer.setdefault(peer.epoch, (peer, [], []))
            reports.append(report)
            streams.append(stream)
        self.lead.reported()
        for peer, reports, streams in by_peer.values():
            if peer.end.send(Report(reports, self.lead.seconds)):
                for stream in streams:
                    stream.num_sent = max(stream.num_sent, stream.sequence.num_computed)

    def _row_report(
        self, row: Row, stream: int, start: int, block: PushedBlock | None
    ) -> RowReport:
        sequence = row.sequence
        drafting = self._admission.to_draft(row)
        state, end = drafting.state, sequence.num_computed
        return RowReport(
            stream=stream,
            round=sequence.num_rounds,
            seed=state.seed_bits,
            sample_index=state.sample_index,
            rule=drafting.rule.value,
            temperature=0.0 if state.is_greedy else state.temperature,
            start=min(start, end),
            token_ids=np.array(sequence.token_ids[min(start, end) :], dtype=np.int32),
            features=self._read(sequence, min(start, end), end),
            block=np.array(row.drafted, dtype=np.int32) if row.verify_len else _NOTHING,
            speculation_id=0 if block is None else block.speculation_id,
        )

    def _read(self, sequence: Sequence, start: int, end: int) -> np.ndarray:
        if self._features is None or start >= end:
            width = 0 if self._features is None else self._features.size
            return np.empty((max(end - start, 0), width), dtype=np.float32)
        rows = self._features.read(sequence.block_ids, start, end)
        return rows.to(torch.float32).cpu().numpy()
