"""Asynchronous speculation, the target's side: look up what drafts pushed, report, never wait.

    drain pushes -> find each row's block by its key -> admit -> report the round -> forward

A row without a block is a *miss*; what happens to it is the miss policy's business. The one bounded
wait is DRAFT_NOW, where no row has a block. What the drafts know is derived state, see
`target_node.speculation.link_streams`.
"""

import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from functools import partial

import torch

from specserve.backends.base import Backend
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.telemetry import VerifiedRow
from specserve.transport.link.messages import BlockKey
from specserve.types import Speculation
from target_node.planning.admission import Admission
from target_node.planning.forecast import Behind, HitPower
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.draft_links import DraftLinks
from target_node.speculation.feature_cache import FeatureCache
from target_node.speculation.link_streams import LinkStreams
from target_node.speculation.local_drafts import LocalDrafts
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.reporting import OutcomeReports
from target_node.speculation.round_latency import RoundLatency
from target_node.speculation.source import SpeculationStatus
from target_node.speculation.table import PushedBlock, SpeculationTable

_POLL_S = 20e-6  # between looks at the ring during DRAFT_NOW


class AsynchronousSpeculation:
    """`SpeculationSource` of blocks drafted in other processes."""

    mode = "async"

    def __init__(
        self,
        links: DraftLinks,
        *,
        admission: Admission,
        features: FeatureCache | None,
        policy: MissPolicy,
        local: LocalDrafts,
        backend: Backend,
        hits: HitPower | None = None,
    ) -> None:
        """`hits` learns how often what was prepared is what comes."""
        self.gamma = admission.gamma
        self.drafter = links.drafter
        self.links = links
        self._admission = admission
        self.policy = policy
        self._local = local
        self._device = backend.device
        self._hit_power = hits or HitPower()
        self._table = SpeculationTable()
        self._streams = LinkStreams()
        round_latency = RoundLatency(backend.turning_point)
        self._reports = OutcomeReports(links, self._streams, admission, features, round_latency)
        self._blocks: dict[Sequence, PushedBlock] = {}  # of this round's rows
        self._hits: dict[Sequence, bool] = {}  # of this round's rows
        self._num_lookups = 0
        self._num_hits = 0
        self._num_lookups_after_hit = self._num_hits_after_hit = 0
        self._num_prepared_blocks = 0  # for the rows looked up
        self._num_misses: Counter[str] = Counter()  # rows, by what was to be done
        self._num_waits = 0
        self._wait_s = 0.0

    # --- a round -------------------------------------------------------------------------------

    def propose(self, rows: list[Row]) -> list[Row]:
        self._reports.round_latency.looked()
        self.warm_up(rows)
        self._blocks.clear()
        self._local.clear()
        decoding = self._admission.begin(rows)
        self._take_pushes()
        streams = [self._streams.of(row.sequence).number for row in decoding]
        outcomes = list(map(self._table.num_blocks, streams))
        found = self._find(decoding)
        self._count(decoding, found, outcomes)
        missed = [row for row in decoding if row.sequence not in found]
        if missed:
            found |= self._after_miss(rows, missed, len(found))
        admitted = self._admission.admit(rows, found)
        self._reports.report(admitted, self._blocks, self._local)
        return admitted

    def _count(
        self, rows: Rows[Row], found: Mapping[Sequence, Speculation], outcomes: Rows[int]
    ) -> None:
        """`outcomes`: as many were prepared for each of the rows."""
        of_each = dict[Behind, list[tuple[int, bool]]]()
        for row, num_outcomes in zip(rows, outcomes, strict=True):
            was_hit = self._hits.get(row.sequence, False)
            behind = Behind(self._admission.kind(row.sequence), was_hit)
            of_each.setdefault(behind, []).append((num_outcomes, row.sequence in found))
        for behind, seen in of_each.items():
            num_outcomes, num_hits = (sum(each) for each in zip(*seen, strict=True))
            self._num_prepared_blocks += num_outcomes
            if behind.is_hit:
                self._num_lookups_after_hit += len(seen)
                self._num_hits_after_hit += num_hits
            self._hit_power.observe(behind, num_outcomes / len(seen), num_hits / len(seen))
        self._hits = {row.sequence: row.sequence in found for row in rows}
        self._num_lookups += len(rows)
        self._num_hits += len(found)

    def poll(self) -> None:
        has_streams = len(self._streams) > 0
        self.links.poll(has_streams=has_streams)
        if not has_streams:  # what came too late would lie in the way of the next request
            self._take_pushes()

    def warm_up(self, rows: list[Row]) -> bool:
        """Bring the drafts' knowledge up to date; whether reports alone would have done."""
        was_warm = not self._reports.lacks(rows)
        for wanted in self.links.take_wanted():
            stream = self._streams.numbered(wanted.stream)
            if stream is None or stream.epoch != wanted.epoch:
                # It has ended, or is another draft's: whoever asks has not heard of that.
                self.links.free(wanted.epoch, wanted.stream)
            else:
                stream.num_sent = min(stream.num_sent, wanted.start)
                stream.knows_sampling = False  # what lost the one may have lost the other
        for row in rows:
            self._reports.send_context(row.sequence)
        return was_warm

    def draft_probs(self, rows: list[Row]) -> DraftProbs | None:
        """One distribution a drafted token of the rows under the ratio test, in the rows' order."""
        parts: list[DraftProbs] = []
        for row in rows:
            if not row.verify_len or row.speculation is None or not self._needs_probs(row):
                continue
            block = self._blocks.get(row.sequence)
            if block is not None:
                parts.append(_probs_of(block, row.verify_len, self._device))
            else:
                parts.append(self._local.draft_probs(row))
        return DraftProbs.joined(parts) if parts else None

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        return self._admission.observe(rows, sampled, self._local.drafted)

    def was_hit(self, sequence: Sequence) -> bool | None:
        return self._hits.get(sequence)

    @property
    def num_drafts_attached(self) -> int:
        return self.links.num_attached

    @property
    def alarm(self) -> int:
        return self.links.alarm

    def status(self) -> SpeculationStatus:
        drafts = self.links.reports
        return SpeculationStatus(
            "async",
            num_draft_processes=self.links.num_processes,
            num_drafts_attached=self.links.num_attached,
            num_lookups=self._num_lookups,
            num_hits=self._num_hits,
            bytes_sent=sum(draft.bytes_sent for draft in drafts),
            bytes_received=sum(draft.bytes_received for draft in drafts),
            drafts=drafts,
            num_draft_batches=self._table.num_draft_batches,
            num_late_draft_batches=self._table.num_late_draft_batches,
            draft_batch_s=self._table.draft_batch_s,
            wait_s=self._wait_s,
            num_waits=self._num_waits,
            num_lookups_after_hit=self._num_lookups_after_hit,
            num_hits_after_hit=self._num_hits_after_hit,
            num_prepared_blocks=self._num_prepared_blocks,
            num_misses=dict(self._num_misses),
        )

    def forget(self, sequence: Sequence) -> None:
        self._admission.forget(sequence)
        self._local.forget(sequence)
        stream = self._streams.forget(sequence)
        if stream is None:
            return
        self._table.forget(stream.number)
        self.links.free(stream.epoch, stream.number)

    def close(self) -> None:
        self.links.close()

    # --- finding blocks --------------------------------------------------------------------------

    def _take_pushes(self) -> None:
        for epoch, push in self.links.receive():
            if push.keys:  # a sound draft sends no empty one
                self.links.pace.observe(len(push.keys), max(push.lengths), push.draft_batch_s)
            self._table.add(push, partial(self._streams.round_of, epoch=epoch))
            self.policy.heard()

    def _find(self, rows: Rows[Row]) -> dict[Sequence, Speculation]:
        self._take_pushes()
        found: dict[Sequence, Speculation] = {}
        for row in rows:
            block = self._table.find(self._key(row.sequence))
            speculation = self._usable(row, block)
            if block is not None and speculation is not None:
                self._blocks[row.sequence] = block
                found[row.sequence] = speculation
        return found

    def _usable(self, row: Row, block: PushedBlock | None) -> Speculation | None:
        if block is None or (self._needs_probs(row) and not block.has_probs):
            return None
        # The last token stays behind: its distribution foretells what follows if all others stand.
        token_ids = block.token_ids[:-1]
        if not token_ids:
            return None
        return Speculation(token_ids=token_ids, confidences=block.confidences)

    def _after_miss(
        self, rows: list[Row], missed: list[Row], num_hits: int
    ) -> dict[Sequence, Speculation]:
        miss = self.policy.choose()
        self._num_misses[miss] += len(missed)
        if miss is Miss.DRAFT_NOW:
            # All rows would wait, and those with blocks lose more than the others' bring.
            return {} if num_hits else self._draft_now(missed)
        if miss not in self._local.kinds:
            return {}
        # Blocks of all that draft, hits too, may compete for places.
        threshold = self._admission.threshold(rows, num_hits + len(missed))
        return self._local.draft(miss, list(map(self._admission.to_draft, missed)), threshold)

    def _draft_now(self, missed: list[Row]) -> dict[Sequence, Speculation]:
        """Ask for blocks after these anchors and wait for them, within the policy's bound.

        Nobody is waited for who is gone, or has not heard all of a row yet.
        """
        began_s = time.perf_counter()
        heard = self._reports.report(missed, self._blocks, self._local, awaits=True)
        missed = [row for row in missed if row.sequence in heard]
        if not missed:
            return {}
        peers = [self._reports.peer_of(row.sequence) for row in missed]
        epochs = {peer.epoch for peer in peers if peer is not None}
        found: dict[Sequence, Speculation] = {}
        deadline_s = began_s + self.policy.max_wait_s
        while len(found) < len(missed) and time.perf_counter() < deadline_s:
            time.sleep(_POLL_S)
            self.links.poll(has_streams=False)
            if any(self.links.with_epoch(epoch) is None for epoch in epochs):
                break
            found |= self._find([row for row in missed if row.sequence not in found])
        self._wait_s += time.perf_counter() - began_s
        self._num_waits += 1
        self.policy.waited(in_vain=not found)
        return found

    def _key(self, sequence: Sequence) -> BlockKey:
        position = len(sequence.token_ids) - 1
        stream = self._streams.of(sequence).number
        return BlockKey(stream, sequence.num_rounds, position, sequence.token_ids[-1])

    def _needs_probs(self, row: Row) -> bool:
        return self._admission.needs_probs(row)


def _probs_of(block: PushedBlock, length: int, device: torch.device) -> DraftProbs:
    """On the device, where they may have landed."""
    ids = torch.as_tensor(block.push.kept_ids[block.place, :length])
    probs = torch.as_tensor(block.push.kept_probs[block.place, :length])
    # Padding travels as PAD_ID, which fits an int32.
    assert PAD_ID < 2**31
    return DraftProbs(ids.to(device, torch.int64), probs.to(device, copy=True))
