"""A target node inside the bench: the real loop, model, cache and speculation, a scripted control.

What is left out is what crosses a process border: frames, the API process and the client. Used
where rounds have to be looked at one by one, or where two arms share one core and one model.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from bench.rounds import Answer, Round, Run, Turn
from specserve.backends.choose import choose_backend
from specserve.drafters.colocated import times_of
from specserve.drafters.protocol import Drafter
from specserve.grammars.compiler import GrammarCompiler
from specserve.models.config import ModelSpec
from specserve.models.transformer import Transformer
from specserve.sampling.verification.method import VerificationMethod
from specserve.telemetry import RoundRecord
from specserve.transport.control.control import TargetControl
from specserve.types import (
    FromTarget,
    Grammar,
    Request,
    RequestEnd,
    RoundEvents,
    SampleDelta,
    SamplingParams,
    Submit,
    Terminal,
    ToTarget,
)
from specserve.validation import Limits
from target_node.blocks import BlockPool
from target_node.node import TargetNode
from target_node.planning import step_profile
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.policies import PricePolicy, ThresholdPolicy
from target_node.planning.round_prices import RoundCosts, RoundPrices
from target_node.ranks import Ranks
from target_node.runner import Runner
from target_node.sampler import Sampler
from target_node.scheduler import Scheduler
from target_node.speculation.drafting import ColocatedDraft
from target_node.speculation.source import NoSpeculation, SpeculationSource, SynchronousSpeculation

_BLOCK_SIZE = 16
_SPARE_BLOCKS = 3  # of a row: a block that is not full, drafts, and what the scheduler keeps free


@dataclass(frozen=True)
class EngineSize:
    """What `max_rows` rows of up to `max_len` tokens need, prompts and answers included."""

    max_rows: int
    max_len: int

    @property
    def num_blocks(self) -> int:
        """KV blocks, the null block included."""
        return 1 + self.max_rows * (-(-self.max_len // _BLOCK_SIZE) + _SPARE_BLOCKS)

    @property
    def num_context_tokens(self) -> int:
        """Of a drafter: more than enough, since a row without memory is decoded without drafts."""
        return 2 * self.num_blocks * _BLOCK_SIZE

    @property
    def max_batch_tokens(self) -> int:
        """All prompts fit one forward, so that no later prompt takes the room of drafts."""
        return self.max_rows * self.max_len

    def max_positions(self, gamma: int, spec: ModelSpec) -> int:
        """Of a drafter's row: its last blocks reach beyond the text."""
        return min(self.max_len + 2 * gamma, spec.max_position_embeddings)


@dataclass(frozen=True)
class Speculating:
    """How drafts are made and verified."""

    drafter: Drafter
    method: VerificationMethod
    gamma: int  # cuts the drafter's own
    num_kept: int
    min_survival: float | None = 0.0  # None: what pays
    keeps_to_grammars: bool = True  # drafts are drawn behind the requests' masks


@dataclass(frozen=True)
class Job:
    """Prompts that are continued side by side by `num_tokens` tokens each.

    Exactly so many with `ignore_eos`, else at most. Equal seeds give equal noise; `max_verify_len`
    is the requests' own limit of drafts a round.
    """

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    num_tokens: int
    temperature: float
    max_verify_len: int | None = None
    ignore_eos: bool = True
    grammar: Grammar | None = None  # of every answer


class ScriptedControl:
    """Both ends of the control plane: what the bench puts in, and what the node sent."""

    def __init__(self) -> None:
        self.inbox: list[ToTarget] = []
        self.sent: list[FromTarget] = []

    def receive(self) -> list[ToTarget]:
        messages, self.inbox = self.inbox, []
        return messages

    def wait(self, timeout_s: float) -> bool:
        return bool(self.inbox)

    def send(self, message: FromTarget) -> bool:
        self.sent.append(message)
        return True


def build_node(
    control: TargetControl,
    runner: Runner,
    *,
    max_batch_rows: int,
    max_batch_tokens: int,
    prefix_cache: bool,
    speculating: Speculating | None = None,
    grammars: GrammarCompiler | None = None,
) -> TargetNode:
    """Rank 0 of a target of one rank, as `target_node.start` puts it together."""
    spec, cache = runner.model.config, runner.cache
    pool = BlockPool(cache.num_blocks, cache.block_size, prefix_cache=prefix_cache)
    scheduler = Scheduler(pool, max_batch_rows=max_batch_rows, max_batch_tokens=max_batch_tokens)
    sampler = Sampler(
        eos_token_ids=tuple(spec.eos_token_ids),
        max_model_len=spec.max_position_embeddings,
        backend=runner.backend,
        default_method=VerificationMethod.COUPLED if speculating is None else speculating.method,
        grammars=grammars,
    )
    speculation: SpeculationSource = NoSpeculation()
    if speculating is not None:
        if speculating.min_survival is None:
            profile(runner, scheduler)
        speculation = _speculation(speculating, runner, scheduler, sampler)
    return TargetNode(
        control=control,
        scheduler=scheduler,
        runner=runner,
        sampler=sampler,
        speculation=speculation,
        ranks=Ranks(1),
        limits=Limits(
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_position_embeddings,
            max_samples=1,
            max_logprobs=0,
        ),
    )


def _speculation(
    speculating: Speculating,
    runner: Runner,
    scheduler: Scheduler,
    sampler: Sampler,
) -> SynchronousSpeculation:
    model, spec = runner.model, speculating.drafter.features
    draft = ColocatedDraft(
        speculating.drafter,
        None if spec is None else runner.keep_features(spec),
        vocab_size=model.config.vocab_size,
        num_kept=speculating.num_kept,
        gamma=speculating.gamma,
        backend=runner.backend,
    )
    draft.keeps_to_grammars = speculating.keeps_to_grammars
    least = speculating.min_survival
    costs = None
    if least is None:
        times = times_of(
            speculating.drafter,
            model=model,
            backend=runner.backend,
            max_rows=scheduler.max_batch_rows,
            max_positions=sampler.max_model_len,
        )
        draft.pace = DraftPace(lambda: times)
        costs = RoundCosts(RoundPrices(runner.backend, runner.steps), draft.pace)
    admission = Admission(
        acceptance=Acceptance(draft.gamma),
        scheduler=scheduler,
        sampler=sampler,
        budget=ThresholdPolicy(least or 0.0) if costs is None else PricePolicy(),
        costs=costs,
    )
    return SynchronousSpeculation(draft, admission)


def profile(runner: Runner, scheduler: Scheduler) -> None:
    """As a service profiles them at start."""
    step_profile.measure(
        runner.steps, runner.forward, scheduler.pool, max_tokens=scheduler.max_batch_tokens
    )


class Engine:
    """A node over a loaded model, with a KV cache of its own; nothing is cached between runs."""

    def __init__(
        self,
        model: Transformer,
        size: EngineSize,
        speculating: Speculating | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Engines may share a model, and a drafter as long as one of them runs at a time.

        `grammars` compiles those of jobs; it may be shared, too.
        """
        self._size = size
        self._control = ScriptedControl()
        runner = Runner(
            model,
            backend=choose_backend(model.embedding.device),
            num_blocks=size.num_blocks,
            block_size=_BLOCK_SIZE,
            deterministic=True,
        )
        self.node = build_node(
            cast(TargetControl, self._control),  # the node uses nothing else of it
            runner,
            max_batch_rows=size.max_rows,
            max_batch_tokens=size.max_batch_tokens,
            prefix_cache=False,
            speculating=speculating,
            grammars=grammars,
        )
        self._grammars = grammars

    @property
    def gamma(self) -> int:
        """Drafted tokens of a round at most."""
        return self.node.speculation.gamma

    def run(self, job: Job) -> Run:
        """Turn until all prompts are continued.

        Raises ValueError for a job that is larger than the engine, RuntimeError if the node fails.
        """
        longest = max(map(len, job.prompts)) + job.num_tokens
        if len(job.prompts) > self._size.max_rows or longest > self._size.max_len:
            raise ValueError(f"{len(job.prompts)} rows of up to {longest} tokens do not fit")
        requests = _requests(job)
        if job.grammar is not None and self._grammars is not None:
            self._grammars.compile(job.grammar).result()  # so that every turn has a round
        self._control.inbox += [Submit(request) for request in requests]
        answers = {request.request_id: Answer() for request in requests}
        turns: list[Turn] = []
        while not turns or self.node.num_requests:
            is_decode = all(answer.token_ids for answer in answers.values())
            start_s = time.perf_counter()
            self.node.turn()
            turn_s = time.perf_counter() - start_s
            record = self.node.rounds.records[-1]
            deltas = self._take_deltas()
            _count_rounds(deltas, record, answers, job.num_tokens)
            turns.append(
                Turn(
                    is_decode=is_decode,
                    num_rows=len(deltas),
                    num_emitted=sum(len(delta.token_ids) for delta in deltas),
                    turn_s=turn_s,
                    draft_s=record.spans_s["draft"],
                    forward_s=record.spans_s["forward"],
                )
            )
        return Run(answers=list(answers.values()), turns=turns)

    def _take_deltas(self) -> list[SampleDelta]:
        """What the last turn emitted."""
        sent, self._control.sent = self._control.sent, []
        deltas: list[SampleDelta] = []
        for message in sent:
            if isinstance(message, RoundEvents):
                deltas += message.deltas
            elif isinstance(message, RequestEnd) and message.terminal is not Terminal.FINISHED:
                raise RuntimeError(f"{message.request_id} {message.terminal}: {message.error}")
        return deltas


def _count_rounds(
    deltas: Sequence[SampleDelta],
    record: RoundRecord,
    answers: dict[str, Answer],
    num_tokens: int,
) -> None:
    verified = {row.request_id: row for row in record.rows}
    for delta in deltas:
        answer, row = answers[delta.request_id], verified.get(delta.request_id)
        if answer.token_ids:  # the first token is the prompt's
            answer.rounds.append(
                Round(
                    room=num_tokens - len(answer.token_ids),
                    num_emitted=len(delta.token_ids),
                    verify_len=row.verify_len if row else 0,
                    num_accepted=row.num_accepted if row else 0,
                )
            )
        answer.token_ids += delta.token_ids


def _requests(job: Job) -> list[Request]:
    sampling = SamplingParams(
        temperature=job.temperature, max_tokens=job.num_tokens, ignore_eos=job.ignore_eos
    )
    return [
        Request(
            request_id=f"row-{row}",
            prompt_token_ids=list(prompt),
            sampling=sampling,
            seed=seed,
            max_verify_len=job.max_verify_len,
            grammar=job.grammar,
        )
        for row, (prompt, seed) in enumerate(zip(job.prompts, job.seeds, strict=True))
    ]
