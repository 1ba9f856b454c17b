"""The target's loop: receive, schedule, run a round, emit. Rank 0 decides, the others follow.

One round, top to bottom: rows -> drafts -> forward on every rank -> verify on rank 0 -> commit ->
emit. Nothing here waits for a reader, nor for a disk but to write a profile. A request ends in
exactly one `RequestEnd`.
"""

import logging
import time
from concurrent.futures import Future
from pathlib import Path

import torch

from specserve.errors import SpecserveError, Unavailable, Unsupported
from specserve.grammars.compiler import CompiledGrammar
from specserve.telemetry import RoundLog
from specserve.transport.control.control import TargetControl
from specserve.types import (
    Abort,
    Drain,
    Drained,
    FinishReason,
    Profile,
    PromptLogprobs,
    Request,
    RoundEvents,
    SampleDelta,
    StopSample,
    Submit,
    Terminal,
    TokenOrigin,
    ToTarget,
)
from specserve.validation import Limits, validate_request
from target_node.batch import ForwardBatch
from target_node.planning.load import DRAFT_PERIOD_S, LOAD_PERIOD_S, LoadMeter
from target_node.planning.profiling import RoundProfiler
from target_node.planning.step_table import StepSize
from target_node.ranks import Order, Ranks
from target_node.requests import LiveRequest, rejection
from target_node.runner import Runner
from target_node.sampler import Fault, SampledRow, Sampler
from target_node.scheduler import Row, Scheduler
from target_node.sequence import Sequence
from target_node.speculation.source import SpeculationSource

log = logging.getLogger(__name__)

_COMPILE_LOOK_S = 0.001  # between looks, while nothing else is to be done


class TargetNode:
    """Rank 0 of the target."""

    def __init__(
        self,
        *,
        control: TargetControl,
        scheduler: Scheduler,
        runner: Runner,
        sampler: Sampler,
        speculation: SpeculationSource,
        ranks: Ranks,
        limits: Limits,
    ) -> None:
        self.control = control
        self.scheduler = scheduler
        self.runner = runner
        self.sampler = sampler
        self.speculation = speculation
        self.ranks = ranks
        self.limits = limits
        self.progress = 0  # counts turns of the loop; a watchdog looks at it
        self.is_stopping = False
        self.rounds = RoundLog()
        self._requests: dict[str, LiveRequest] = {}
        self._compiling: list[tuple[LiveRequest, Future[CompiledGrammar]]] = []
        self._arrivals = 0
        self._draining = False
        self._drained_sent = False
        self._profiler = RoundProfiler(control.send, runner.backend.profiler_activities)
        self._load = LoadMeter()

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def run(self) -> None:
        """Serve until `is_stopping`."""
        while not self.is_stopping:
            self.turn()
        self.ranks.broadcast(Order.STOP)

    def turn(self) -> None:
        """One turn of the loop: take what arrived, run a round or rest, report."""
        self.progress += 1
        for message in self.control.receive():
            self._handle(message)
        self._expire_deadlines()
        if self._compiling:
            self._take_compiled()
        self.speculation.poll()
        rows = self.scheduler.next_batch()
        if rows:
            self._run_round(rows)
        self._publish_load()  # before any rest: a draft process that has ended is news
        if not rows:
            self._idle()

    # --- one round ---------------------------------------------------------------------------

    def _run_round(self, rows: list[Row]) -> None:
        start_s = time.monotonic()
        with self.rounds.round() as record:
            for row in rows:
                self._requests[row.sequence.request.request_id].mark_started(start_s)
            with record.span("draft"):
                rows = self.speculation.propose(rows)
            record.mode = self.speculation.mode
            batch = ForwardBatch.of(rows, self.scheduler.pool.take_fresh())
            num_first_calls = self.runner.backend.num_first_calls
            with self._profiler.round(), record.span("forward"):
                logits = self.forward(batch)
                self.scheduler.look_ahead(rows, self.speculation.gamma)
            with record.span("sample"):
                sampled = self.sampler.sample(rows, logits, self.speculation.draft_probs(rows))
            record.rows = self.speculation.observe(rows, sampled)
            if num_first_calls == self.runner.backend.num_first_calls:  # else it took longer once
                seconds = record.spans_s["forward"] + record.spans_s["sample"]
                size = StepSize.of(batch.attention, self.runner.num_computed)
                self.runner.steps.observe(size, seconds)
            self._load.count_prefill(rows)
            deltas = [
                delta
                for row, result in zip(rows, sampled, strict=True)
                if (delta := self._commit(row, result)) is not None
            ]
            if deltas:
                self.control.send(RoundEvents(self._load.num_rounds, deltas))
        self._load.count_round(deltas, record)
        self._end_finished(rows, sampled)

    def forward(self, batch: ForwardBatch) -> torch.Tensor | None:
        """On every rank; the logits that `batch` wants."""
        if self.ranks.size > 1:
            self.ranks.broadcast(Order.FORWARD, batch.encode())
        return self.runner.forward(batch)

    def _commit(self, row: Row, result: SampledRow) -> SampleDelta | None:
        """Take the round's outcome over into the row's sequence; what is to be emitted of it."""
        sequence = row.sequence
        live = self._requests[sequence.request.request_id]
        if result.is_void:
            sequence.may_speculate = False
            self.scheduler.redo(sequence)
            return None
        sequence.token_ids += result.token_ids
        if result.fault is None:
            self.scheduler.commit(row, result.num_accepted)
        if result.prompt_logprobs:
            sequence.num_prompt_logprobs += len(result.prompt_logprobs)
            self.control.send(PromptLogprobs(live.request.request_id, result.prompt_logprobs))
        if not result.token_ids:
            return None
        now_s = time.monotonic()
        live.mark_prefilled(now_s)
        sequence.mark_decoding(now_s)
        sequence.count_drafts(row.verify_len, result.num_accepted)
        sequence.finish_reason = result.finish_reason
        for other in live.start_others():
            self.scheduler.add(other)
        return SampleDelta(
            request_id=sequence.request.request_id,
            sample_index=sequence.sample_index,
            token_ids=result.token_ids,
            origins=_origins(row, result),
            logprobs=result.logprobs or None,
            finish_reason=sequence.finish_reason,
            stop_token_id=result.stop_token_id,
            cache_hit=self.speculation.was_hit(sequence),
            verify_len=row.verify_len,
        )

    def _end_finished(self, rows: list[Row], sampled: list[SampledRow]) -> None:
        """Release what finished in this round, and end the requests that are complete."""
        for row, result in zip(rows, sampled, strict=True):
            sequence = row.sequence
            live = self._requests.get(sequence.request.request_id)
            if live is None:
                continue
            if result.fault is not None:
                self._fail(live, result.fault)
            elif live.is_finished:
                self._end(live, Terminal.FINISHED)
            elif sequence.finish_reason is not None:
                self._drop(sequence)
            elif result.is_spoiled:
                # A rejected token left KV that is not finite, which would spoil what comes next.
                sequence.may_speculate = False
                self.scheduler.redo(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Free what a sequence holds; harmless when it holds nothing any more."""
        self.scheduler.remove(sequence)
        self.sampler.forget(sequence)
        self.speculation.forget(sequence)

    # --- what arrives ------------------------------------------------------------------------

    def _handle(self, message: ToTarget) -> None:
        match message:
            case Submit(request):
                self._submit(request)
            case Abort(request_id):
                live = self._requests.get(request_id)
                if live is not None:
                    self._end(live, Terminal.CANCELLED)
            case StopSample(request_id, sample_index):
                self._stop_sample(request_id, sample_index)
            case Drain():
                self._draining, self._drained_sent = True, False
            case Profile(num_rounds, path):
                self._profiler.ask(num_rounds, Path(path))
            case _:
                log.warning("unexpected message %r", type(message).__name__)

    def _submit(self, request: Request) -> None:
        """Accept a request, or end it at once.

        The API has checked its fields, but one that slipped through must not cost the others.
        """
        if request.request_id in self._requests:
            # The id's owner must not see an end that is not its own.
            log.error("request id %r is in use; the second request is ignored", request.request_id)
            return
        try:
            if self._draining:
                raise Unavailable("the service is draining")
            if request.grammar is not None and self.sampler.grammars is None:
                raise Unsupported(f"{request.grammar.field}: nobody here compiles grammars")
            live = LiveRequest.of(validate_request(request, self.limits), self._arrivals)
        except SpecserveError as error:
            self.control.send(rejection(request, error))
            return
        self._arrivals += 1
        self._requests[request.request_id] = live
        if request.grammar is None or self.sampler.grammars is None:
            self.scheduler.add(live.sequences[0])
        else:
            self._compiling.append((live, self.sampler.grammars.compile(request.grammar)))

    def _take_compiled(self) -> None:
        """Requests whose grammars are compiled begin; rounds of others ran meanwhile."""
        waiting, self._compiling = self._compiling, []
        for live, compiled in waiting:
            request = live.request
            if self._requests.get(request.request_id) is not live:
                continue  # it has ended
            if not compiled.done():
                self._compiling.append((live, compiled))
                continue
            error = compiled.exception()
            if error is None:
                live.sequences[0].grammar = compiled.result()
                self.scheduler.add(live.sequences[0])
                continue
            if not isinstance(error, SpecserveError):
                log.error("compiling a grammar failed", exc_info=error)
                error = SpecserveError(f"compiling a grammar failed: {type(error).__name__}")
            del self._requests[request.request_id]
            self.control.send(rejection(request, error))

    def _stop_sample(self, request_id: str, sample_index: int) -> None:
        """The API found a stop string: the sample is complete, whatever was decoded since."""
        live = self._requests.get(request_id)
        if live is None or not 0 <= sample_index < len(live.sequences):
            return
        sequence = live.sequences[sample_index]
        if sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.STOP
            self._drop(sequence)
            if live.is_finished:
                self._end(live, Terminal.FINISHED)

    def _expire_deadlines(self) -> None:
        now_s = time.monotonic()
        for live in list(self._requests.values()):
            deadline_s = live.request.deadline_s
            if deadline_s is not None and now_s > deadline_s:
                self._end(live, Terminal.FAILED, "the deadline has passed", "DEADLINE_EXCEEDED")

    # --- how requests end --------------------------------------------------------------------

    def _end(self, live: LiveRequest, terminal: Terminal, error: str = "", code: str = "") -> None:
        """The only way out: free all of the request and send its one `RequestEnd`."""
        del self._requests[live.request.request_id]
        for sequence in live.sequences:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORT
            self._drop(sequence)
        self._publish_load()  # before, so that who asks once it has ended finds it counted
        self.control.send(live.end(terminal, error, code))

    def _fail(self, live: LiveRequest, fault: Fault) -> None:
        """No token could be drawn for one of its rows: end this request alone."""
        if fault is Fault.NO_TOKEN_LEFT:
            self._end(live, Terminal.FAILED, fault.value, "INVALID_ARGUMENT")
            return
        # What it read cannot be trusted any more, whoever computed it.
        for sequence in live.sequences:
            self.scheduler.pool.forget(sequence.block_ids)
        log.error("request %r: %s", live.request.request_id, fault.value)
        self._end(live, Terminal.FAILED, fault.value, "INTERNAL")

    # --- between rounds ----------------------------------------------------------------------

    def _idle(self) -> None:
        """Nothing can run: sleep until a message comes or the next load is due."""
        if self._draining and not self._requests and not self._drained_sent:
            self._drained_sent = True
            self.control.send(Drained())
        if self._compiling:
            self.control.wait(_COMPILE_LOOK_S)
            return
        # Draft processes come and go by themselves, also while nobody asks for anything.
        has_drafts = self.speculation.status().num_draft_processes > 0
        self.control.wait(DRAFT_PERIOD_S if has_drafts else LOAD_PERIOD_S, self.speculation.alarm)
        self.ranks.keep_alive()
        self._profiler.rest()

    def _publish_load(self) -> None:
        if self._load.is_due(self.scheduler, self.speculation.num_drafts_attached):
            status = self.speculation.status()
            load = self._load.report(
                self.scheduler,
                status,
                self.runner.steps,
                num_broken_laws=self.sampler.num_broken_laws,
                draining=self._draining,
            )
            self.control.send(load)


def follow(ranks: Ranks, runner: Runner) -> None:
    """The loop of ranks 1..T-1: compute what rank 0 says until it says stop."""
    while True:
        order, payload = ranks.receive()
        if order is Order.FORWARD:
            runner.forward(ForwardBatch.decode(payload))
        elif order is Order.STOP:
            return


def _origins(row: Row, result: SampledRow) -> list[TokenOrigin]:
    if not row.verify_len:
        return [TokenOrigin.PLAIN] * len(result.token_ids)
    all_stood = result.num_accepted == row.verify_len
    own = TokenOrigin.BONUS if all_stood else TokenOrigin.RECOVERY
    num_own = len(result.token_ids) - result.num_accepted
    return [TokenOrigin.DRAFTED] * result.num_accepted + [own] * num_own
