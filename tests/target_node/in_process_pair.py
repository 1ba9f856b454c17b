"""A target and its draft processes in one thread: real nodes, real frames, no processes or sockets.

Between two turns of the target every draft makes a number of turns that a seed decides and no token
does. So blocks come in time, late, in part or never; and whatever happened happens again.
"""

import random
from collections.abc import Callable, Collection
from contextlib import ExitStack
from unittest import mock

import draft_node.node
import draft_node.prespeculation.prespeculation
import specserve.drafters.step_timer
import target_node.speculation.asynchronous
import target_node.speculation.auto
import target_node.speculation.draft_links
import target_node.speculation.miss_policy
import target_node.speculation.round_latency
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import Drafter
from specserve.grammars.compiler import GrammarCompiler
from specserve.models.transformer import Transformer
from specserve.sampling.verification.admission import Allocator
from specserve.transport.link.frames import LinkLimits
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.asynchronous import AsynchronousSpeculation
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.draft_links import DraftLinks, DraftPeer
from target_node.speculation.drafting import ColocatedDraft
from target_node.speculation.local_drafts import LocalDrafts
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.source import NoSpeculation, SpeculationSource, SynchronousSpeculation
from tests.target_node.in_process import InProcessTarget
from tests.target_node.scripted_drafts import CPU, Clock, ControlWire, Drafting, DraftLife

TURN_S = 0.01  # of the target, in the script's time
TIMEOUT_S = 0.05  # of a draft's silence
_TIMED = (
    target_node.speculation.asynchronous,
    target_node.speculation.auto,
    target_node.speculation.draft_links,
    target_node.speculation.round_latency,
    target_node.speculation.miss_policy,
    specserve.drafters.step_timer,
    draft_node.node,
    draft_node.prespeculation.prespeculation,
)


class ScriptedChooser:
    """In place of `ModeChooser`: any mode, for a few rounds."""

    def __init__(self, modes: list[str], seed: int) -> None:
        self._modes = modes
        self._source = random.Random(seed)
        self.num_switches = 0
        self._last = ""

    def next_run(self, load: object, *, but: Collection[str] = ()) -> tuple[str, int]:
        mode = self._source.choice([each for each in self._modes if each not in but])
        self.num_switches += mode != self._last
        self._last = mode
        return mode, self._source.randint(1, 6)

    def preferred(self, load: object, *, but: Collection[str] = ()) -> str:
        return self.next_run(load, but=but)[0]

    def best(self, load: object, *, but: Collection[str]) -> str:
        return next(mode for mode in self._modes if mode not in but)

    def observe(
        self, load: object, mode: str, num_tokens: int, seconds: float, *, age: int | None
    ) -> None:
        pass


class AnyMiss(MissPolicy):
    """Any of the kinds, now this one, now that."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._source = random.Random(seed)

    def choose(self) -> Miss:
        return self._source.choice(list(Miss))


class InProcessPair(InProcessTarget):
    """Use as a context manager: inside, the nodes' time is the script's."""

    def __init__(
        self,
        model: Transformer,
        make_drafter: Callable[[], Drafter],
        drafting: Drafting | None = None,
        *,
        miss: Miss | None = None,
        misses: Collection[Miss] = (),
        auto: bool = False,
        budget: Callable[[], Allocator] = ThresholdPolicy,
        max_extension: int = 512,
        drafts_grammars: GrammarCompiler | None = None,
        **target,
    ) -> None:
        """`miss`: None: any kind at any time. `misses`: as measured, of these instead.

        `auto`: any mode at any time.
        """
        super().__init__(model, **target)
        self.clock = Clock()
        self.drafting = drafting or Drafting()
        self._budget, self._max_extension = budget, max_extension
        drafter = make_drafter()  # for what it says of itself
        features = None if drafter.features is None else self.runner.keep_features(drafter.features)
        self._features = features
        limits = self._limits(drafter)
        wire = ControlWire(self.drafting.num_drafts, self.drafting.control_loss, self.drafting.seed)
        self.drafts = [
            DraftLife(index, make_drafter, self.drafting, wire, limits, drafts_grammars)
            for index in range(self.drafting.num_drafts)
        ]
        self.links = DraftLinks(
            [DraftPeer(d.index, d.target_end(), d.region) for d in self.drafts],
            wire.target_end(),
            limits=limits,
            drafter=drafter.name,
            timeout_s=TIMEOUT_S,
        )
        lookup = NgramDrafter(gamma=drafter.gamma, shortest=1)
        self._here = self._colocated(make_drafter())
        drafts = {Miss.NGRAM: self._colocated(lookup), Miss.LOCAL_DRAFT: self._here}
        is_any = not (miss or misses or auto)  # those tell which
        self.policy = AnyMiss(self.drafting.seed) if is_any else MissPolicy(miss or Miss.SKIP)
        self.asynchronous = AsynchronousSpeculation(
            self.links,
            admission=self._admission(drafter.gamma),
            features=features,
            policy=self.policy,
            local=LocalDrafts(drafts, CPU),
            backend=self.runner.backend,
        )
        self.chooser: ScriptedChooser | None = None
        self.speculation: SpeculationSource = self.asynchronous
        if auto:
            self.speculation = self._auto()
        elif misses:
            self.speculation = self._measured(misses)
        self.node.speculation = self.speculation
        self.clock.on_sleep = self._step_drafts
        self._stack = ExitStack()

    def __enter__(self) -> "InProcessPair":
        for module in _TIMED:
            self._stack.enter_context(mock.patch.object(module, "time", self.clock))
        # Beside prompts as well, modes are to change often.
        for limit in ("RUN", "MOST_MIXED"):
            self._stack.enter_context(mock.patch.object(target_node.speculation.auto, limit, 3))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.links.close()
        for draft in self.drafts:
            draft.close()

    @property
    def hit_rate(self) -> float:
        """Of the rows that could be drafted for."""
        status = self.asynchronous.status()
        return status.num_hits / max(1, status.num_lookups)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            for draft in self.drafts:
                draft.pass_turn()
            self.clock.now_s += TURN_S  # what a draft has from a report to the next look
            self.node.turn()

    def run_until_idle(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            self.turn()
            if not self.node.num_requests and not self.control.inbox:
                return
        raise AssertionError(f"{self.node.num_requests} requests still alive after {limit} turns")

    def _step_drafts(self) -> None:
        for draft in self.drafts:
            draft.step()

    # --- parts -----------------------------------------------------------------------------------

    def _limits(self, drafter: Drafter) -> LinkLimits:
        return LinkLimits(
            vocab_size=self.runner.model.config.vocab_size,
            gamma=drafter.gamma,
            feature_size=drafter.feature_size,
            max_positions=self.sampler.max_model_len,
            max_rows=self.scheduler.max_batch_rows,
            max_kept=self.drafting.num_kept,
        )

    def _measured(self, misses: Collection[Miss]) -> AutoSpeculation:
        names = {f"async {miss}": miss for miss in misses}
        modes = dict.fromkeys(names, self.asynchronous)
        return AutoSpeculation(modes, self.sampler.method, self.runner.backend, names, self.policy)

    def _auto(self) -> AutoSpeculation:
        draft, misses = self._here, {f"async {miss}": miss for miss in Miss}
        modes: dict[str, SpeculationSource] = {
            "off": NoSpeculation(),
            "sync": SynchronousSpeculation(draft, self._admission(draft.gamma)),
        }
        modes |= dict.fromkeys(misses, self.asynchronous)
        source = AutoSpeculation(
            modes, self.sampler.method, self.runner.backend, misses, self.policy
        )
        self.chooser = ScriptedChooser(list(modes), self.drafting.seed)
        source._chooser = self.chooser
        return source

    def _admission(self, gamma: int) -> Admission:
        return Admission(
            acceptance=Acceptance(gamma),
            scheduler=self.scheduler,
            sampler=self.sampler,
            budget=self._budget(),
        )

    def _colocated(self, drafter: Drafter) -> ColocatedDraft:
        return ColocatedDraft(
            drafter,
            None if drafter.features is None else self._features,
            vocab_size=self.runner.model.config.vocab_size,
            num_kept=self.drafting.num_kept,
            max_extension=self._max_extension,
            backend=self.runner.backend,
        )
