# pyright: strict
"""Asynchronous speculation, the target's side: look, admit, report, never wait but where it pays.

The same steps as `target_node.speculation.asynchronous`, around the shipped admission, round
latencies, hit counts and miss policy; blocks come from simulated draft processes.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from bench.simulate.colocated import SimulatedColocated, Standing
from bench.simulate.draft_process import DraftProcess, Outcome, RowSeen, Seen
from bench.simulate.setting import Drafters
from bench.simulate.texts import Draws
from bench.simulate.virtual_time import VirtualTime
from specserve.telemetry import VerifiedRow
from specserve.types import Speculation
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.forecast import Behind, HitPower
from target_node.sampler import SampledRow
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.round_latency import RoundLatency
from target_node.speculation.source import NoSpeculation


@dataclass
class HitCounts:
    """Of rows that were looked up, while it is counted."""

    num_lookups: int = 0
    num_hits: int = 0


@dataclass
class _LatestRound:
    """What the processes were told of a row."""

    number: int  # of the row's rounds
    verify_len: int
    outcome: Outcome | None = None  # once it is over


class SimulatedAsynchronous(NoSpeculation):
    """`SpeculationSource` of blocks drafted in simulated processes."""

    mode = "async"
    drafter = "simulated"

    def __init__(
        self,
        processes: Rows[DraftProcess],
        drafters: Drafters,
        *,
        admission: Admission,
        draws: tuple[Draws, Standing],
        clock: VirtualTime,
        turning_point: float,
        beside: SimulatedColocated | None,
    ) -> None:
        self.gamma = admission.gamma
        self.num_drafts_attached = len(processes)
        self.policy = MissPolicy()
        self.hits = HitPower()
        self.pace = DraftPace(lambda: processes[0].times)
        self.counts = HitCounts()
        self._processes, self._link_s = processes, drafters.link_s
        self._admission, self._clock = admission, clock
        self._draws, self._standing = draws
        self._beside = beside
        self._latency = RoundLatency(turning_point)
        self._rounds: dict[Sequence, _LatestRound] = {}
        self._were_hits: dict[Sequence, bool] = {}
        self._stand_ins: set[Sequence] = set()

    # --- a round ---------------------------------------------------------------------------------

    def propose(self, rows: list[Row]) -> list[Row]:
        self._latency.looked()
        decoding = self._admission.begin(rows)
        self._stand_ins.clear()
        found = self._find(decoding)
        hits = set(found)
        self._count(decoding, hits)
        missed = [row for row in decoding if row.sequence not in hits]
        waited_for = set[Sequence]()
        if missed:
            stood_in = self._after_miss(missed, len(hits))
            waited_for = set(stood_in) - self._stand_ins
            found |= stood_in
        admitted = self._admission.admit(rows, found)
        self._report(admitted, hits | waited_for)
        return admitted

    def observe(self, rows: list[Row], sampled: list[SampledRow]) -> list[VerifiedRow]:
        standing = np.array([result.num_accepted for result in sampled])
        verified = np.array([row.verify_len for row in rows])
        ranks: list[int] = self._draws.ranks(standing, verified).tolist()
        for row, result, rank in zip(rows, sampled, ranks, strict=True):
            latest = self._rounds.get(row.sequence)
            if latest is not None:
                latest.outcome = result.num_accepted, rank
        return self._admission.observe(rows, sampled, self._stand_ins)

    def was_hit(self, sequence: Sequence) -> bool | None:
        return self._were_hits.get(sequence)

    def forget(self, sequence: Sequence) -> None:
        self._admission.forget(sequence)
        self._rounds.pop(sequence, None)
        self._were_hits.pop(sequence, None)
        self._process_of(sequence).forget(sequence)

    # --- finding blocks --------------------------------------------------------------------------

    def _find(self, rows: Rows[Row]) -> dict[Sequence, Speculation]:
        by_s = self._clock.now_s - self._link_s
        lengths: dict[Sequence, int] = {}
        for row in rows:
            sequence, outcome = row.sequence, self._outcome_before(row.sequence)
            if outcome is None:
                continue
            number, process = sequence.num_rounds - 1, self._process_of(sequence)
            block = process.block_for(sequence, number, outcome, by_s)
            if block is not None:
                lengths[sequence] = block.num_tokens - 1  # the last one stays behind
        return self._draw(lengths)

    def _draw(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Speculation]:
        found: dict[Sequence, Speculation] = {}
        for length in sorted(set(lengths.values()) - {0}):
            alike = [sequence for sequence, own in lengths.items() if own == length]
            found |= self._standing.draw(alike, length, is_prepared=True)
        return found

    def _outcome_before(self, sequence: Sequence) -> Outcome | None:
        """None where the processes were not told of the round before."""
        latest = self._rounds.get(sequence)
        is_latest = latest is not None and latest.number == sequence.num_rounds - 1
        return latest.outcome if latest is not None and is_latest else None

    def _count(self, rows: Rows[Row], hits: set[Sequence]) -> None:
        by_s = self._clock.now_s - self._link_s
        seen: dict[Behind, list[tuple[int, bool]]] = {}
        for row in rows:
            sequence = row.sequence
            behind = Behind(self._admission.kind(sequence), self._were_hits.get(sequence, False))
            number, process = sequence.num_rounds - 1, self._process_of(sequence)
            num_outcomes = process.num_prepared(sequence, number, by_s)
            seen.setdefault(behind, []).append((num_outcomes, sequence in hits))
        for behind, each in seen.items():
            num_outcomes, num_hits = (sum(values) for values in zip(*each, strict=True))
            self.hits.observe(behind, num_outcomes / len(each), num_hits / len(each))
        self._were_hits.update({row.sequence: row.sequence in hits for row in rows})
        self.counts.num_lookups += len(rows)
        self.counts.num_hits += len(hits)

    # --- misses ----------------------------------------------------------------------------------

    def _after_miss(self, missed: list[Row], num_hits: int) -> dict[Sequence, Speculation]:
        miss = self.policy.choose()
        if miss is Miss.DRAFT_NOW:
            return {} if num_hits else self._draft_now(missed)
        if miss is not Miss.LOCAL_DRAFT or self._beside is None:
            return {}
        to_draft = list(map(self._admission.to_draft, missed))
        found = self._beside.speculate(to_draft, num_scored=1)
        self._stand_ins.update(found)
        return {
            sequence: Speculation(each.token_ids[:-1], each.confidences)
            for sequence, each in found.items()
        }

    def _draft_now(self, missed: list[Row]) -> dict[Sequence, Speculation]:
        """Blocks after these anchors, waited for within the policy's bound."""
        began_s = self._clock.now_s
        ends_s = began_s + self.policy.max_wait_s
        asked = [self._seen(row, has_block=False, is_asked=True) for row in missed]
        self._send(missed, asked)
        lengths: dict[Sequence, int] = {}
        latest_s = began_s
        for row in missed:
            process = self._process_of(row.sequence)
            process.advance(ends_s)
            block = process.root_of(row.sequence, row.sequence.num_rounds)
            if block is not None and block.ready_s + self._link_s <= ends_s:
                lengths[row.sequence] = block.num_tokens - 1
                latest_s = max(latest_s, block.ready_s + self._link_s)
        self._clock.now_s = latest_s if len(lengths) == len(missed) else ends_s
        self.policy.waited(in_vain=not lengths)
        return self._draw(lengths)

    # --- reports ---------------------------------------------------------------------------------

    def _report(self, rows: list[Row], own: set[Sequence]) -> None:
        """`own`: rows whose block a process has drafted, so that it knows what may follow."""
        told = own | self._stand_ins
        seen = [self._seen(row, has_block=row.sequence in told) for row in rows]
        self._latency.reported(sum(row.num_tokens for row in rows))
        self._send(rows, seen)
        for row in rows:
            sequence = row.sequence
            self._rounds[sequence] = _LatestRound(sequence.num_rounds, row.verify_len)

    def _send(self, rows: list[Row], seen: list[RowSeen]) -> None:
        arrives_s, round_s = self._clock.now_s + self._link_s, self._latency.seconds
        by_process: dict[int, list[RowSeen]] = {}
        for row, each in zip(rows, seen, strict=True):
            number = row.sequence.arrival % len(self._processes)
            by_process.setdefault(number, []).append(each)
        for number, own in by_process.items():
            self._processes[number].report(Seen(arrives_s, round_s, own))

    def _seen(self, row: Row, *, has_block: bool, is_asked: bool = False) -> RowSeen:
        confidences = row.speculation.confidences if row.speculation is not None else None
        return RowSeen(
            row=row.sequence,
            number=row.sequence.num_rounds,
            outcome=self._outcome_before(row.sequence),
            verify_len=row.verify_len,
            confidences=(confidences or ())[: row.verify_len],
            has_block=has_block,
            asked_anyway=is_asked,
        )

    def _process_of(self, sequence: Sequence) -> DraftProcess:
        return self._processes[sequence.arrival % len(self._processes)]
