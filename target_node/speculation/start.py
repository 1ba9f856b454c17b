"""From the configuration to the `SpeculationSource` of a target leader."""

import logging
from functools import partial
from pathlib import Path

import msgspec
import torch

from specserve.drafters import colocated as colocated_drafters
from specserve.drafters.context import ContextCapacity
from specserve.drafters.draft_times import recall
from specserve.drafters.usual_acceptance import GREEDY, usual_acceptance
from specserve.processes.process import ChildArguments
from specserve.settings.config import NUM_KEPT, ResolvedConfig, SpeculationConfig
from specserve.settings.draft_files import DraftFile
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hardware import probe
from specserve.settings.resolve import kv_bytes_per_token
from specserve.transport.control.draft_control import DraftControlTarget
from specserve.transport.group_link.ends import GroupTargetEnd, Meeting
from specserve.transport.link.ends import TargetLinkEnd
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.ring import RingTargetEnd, SharedRegion
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.forecast import (
    AsynchronousRounds,
    Forecasts,
    HitPower,
    OnMiss,
    PlainRounds,
    RoundModel,
    SynchronousRounds,
)
from target_node.planning.mode_speeds import BatchLoad
from target_node.planning.policies import policy_named
from target_node.planning.round_prices import RoundCosts, RoundPrices
from target_node.runner import Runner
from target_node.sampler import Sampler
from target_node.scheduler import Scheduler
from target_node.speculation.asynchronous import AsynchronousSpeculation
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.draft_links import DraftLinks, DraftPeer
from target_node.speculation.drafting import ColocatedDraft
from target_node.speculation.far_drafts import open_hub
from target_node.speculation.feature_cache import FeatureCache
from target_node.speculation.local_drafts import LocalDrafts
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.source import NoSpeculation, SpeculationSource, SynchronousSpeculation

_LONGEST = 64  # tokens of a block, as `speculation.gamma` may be
_TOLD_ROWS = 16  # of the larger load that people hear of

log = logging.getLogger(__name__)


def build_speculation(
    config: ResolvedConfig,
    arguments: ChildArguments,
    runner: Runner,
    scheduler: Scheduler,
    sampler: Sampler,
) -> SpeculationSource:
    """What the configured mode drafts with. Raises `Unsupported` for a drafter that cannot."""
    mode, colocated = config.speculation.mode, config.speculation.colocated_drafter
    if mode == "off":
        return NoSpeculation()
    builder = _Builder(config, runner, scheduler, sampler)
    if mode == "sync":
        return builder.synchronous(config.speculation)
    modes: dict[str, SpeculationSource] = {}
    if mode == "auto":
        modes["off"] = NoSpeculation()
        if colocated is not None:
            modes["sync"] = builder.synchronous(_drafting_with(config.speculation, colocated))
    misses, policy = dict[str, Miss](), None
    if mode == "async" or arguments.link_fds or config.far_drafts:
        source = builder.asynchronous(arguments)
        misses = {f"async {miss}": miss for miss in _fallbacks(config.speculation)}
        modes |= dict.fromkeys(misses, source)
        policy = source.policy
        if len(modes) == 1:
            return source
    forecasts = builder.forecasts(list(modes))
    return AutoSpeculation(modes, sampler.method, runner.backend, misses, policy, forecasts)


def _fallbacks(speculation: SpeculationConfig) -> list[Miss]:
    """What may be done about misses. Under `auto` a row's own text was never the best measured."""
    if speculation.miss_policy != "auto":
        return [Miss(speculation.miss_policy)]
    here = [] if speculation.colocated_drafter is None else [Miss.LOCAL_DRAFT]
    own = [] if speculation.mode == "auto" else [Miss.NGRAM]
    return [*here, *own, Miss.DRAFT_NOW, Miss.SKIP]


def _drafting_with(speculation: SpeculationConfig, drafter: str) -> SpeculationConfig:
    """The same with another drafter; a local head belongs to the one that it came with."""
    if drafter == speculation.drafter:
        return speculation
    return msgspec.structs.replace(speculation, drafter=drafter, local_head=None)


class _Builder:
    """Sources that share the node's parts, and feature caches where drafters agree on them."""

    def __init__(
        self,
        config: ResolvedConfig,
        runner: Runner,
        scheduler: Scheduler,
        sampler: Sampler,
    ) -> None:
        self._config = config
        self._runner = runner
        self._scheduler = scheduler
        self._sampler = sampler
        self._target = Path(config.model.target or "")
        self._features: dict[str, FeatureCache | None] = {}  # by drafter
        self._drafts: dict[str, ColocatedDraft] = {}  # by drafter
        self._acceptances: dict[str, Acceptance] = {}  # by drafter
        self._rounds: dict[str, RoundModel] = {"off": PlainRounds()}  # by mode
        self._on_miss: dict[Miss, OnMiss] = {Miss.DRAFT_NOW: OnMiss(waits=True)}
        self._hits = HitPower()
        self._short: set[str | None] = set()  # drafters whose positions were told of

    def synchronous(self, speculation: SpeculationConfig) -> SynchronousSpeculation:
        draft = self._colocated(speculation)
        positions = self._positions([speculation])
        # Under `auto` the speed of whole modes decides.
        may_pause = speculation.mode == "sync"
        acceptance = self._acceptance(draft.gamma, speculation)
        self._rounds["sync"] = SynchronousRounds(acceptance, draft.pace)
        admission = self._admission(
            acceptance,
            positions,
            drafts=draft.pace,
            may_pause=may_pause,
            are_blind=draft.is_blind,
        )
        return SynchronousSpeculation(draft, admission)

    def asynchronous(self, arguments: ChildArguments) -> AsynchronousSpeculation:
        speculation = self._config.speculation
        folder = speculation.drafter or ""
        name, gamma = colocated_drafters.describe(speculation)
        features = self._features_of(folder)
        local = self._local(speculation)
        used = [_drafting_with(speculation, name) for name in self._stand_ins(speculation).values()]
        positions = self._positions([speculation, *used])
        feature_size = 0 if features is None else features.size
        limits = self._limits(gamma, feature_size, positions)
        links = self._links(arguments, name, limits)
        acceptance = self._acceptance(gamma, speculation)
        for miss in _fallbacks(speculation):
            self._rounds[f"async {miss}"] = AsynchronousRounds(
                acceptance,
                drafts=links.pace,
                num_processes=links.num_processes,
                most_outcomes=speculation.fan_out,
                hits=self._hits,
                on_miss=self._on_miss.get(miss, OnMiss()),
                slower=self._runner.backend.neighbour_factor,
            )
        return AsynchronousSpeculation(
            links,
            admission=self._admission(acceptance, positions, is_asynchronous=True),
            features=features,
            policy=MissPolicy(_fallbacks(speculation)[0]),
            local=local,
            backend=self._runner.backend,
            hits=self._hits,
        )

    def forecasts(self, modes: list[str]) -> Forecasts:
        """Of these sources, in their order."""
        most_rows = self._config.engine.max_batch_rows
        told = [
            BatchLoad.of(num_rows, kind)
            for num_rows in (1, min(_TOLD_ROWS, most_rows))
            for kind in (GREEDY, self._sampler.default_method)
        ]
        rounds = {mode: self._rounds[mode] for mode in modes}
        return Forecasts(rounds, self._runner.steps, list(dict.fromkeys(told)))

    def _acceptance(self, gamma: int, speculation: SpeculationConfig) -> Acceptance:
        """Of the drafter's blocks, wherever it drafts."""
        drafter = speculation.drafter or ""
        if drafter not in self._acceptances:
            usual = usual_acceptance(speculation, drafter, self._target)
            self._acceptances[drafter] = Acceptance(_LONGEST, usual)
        return self._acceptances[drafter].of_blocks(gamma)

    def _local(self, speculation: SpeculationConfig) -> LocalDrafts:
        """What can stand in for a missing block, as far as the miss policy may want it."""
        drafts: dict[Miss, ColocatedDraft] = {}
        for miss, drafter in self._stand_ins(speculation).items():
            wanted = _drafting_with(speculation, drafter)
            drafts[miss] = draft = self._colocated(wanted)
            acceptance = self._acceptance(draft.gamma, wanted)
            self._on_miss[miss] = OnMiss(SynchronousRounds(acceptance, draft.pace))
        return LocalDrafts(drafts, self._device)

    def _stand_ins(self, speculation: SpeculationConfig) -> dict[Miss, str]:
        drafters = {Miss.NGRAM: NGRAM, Miss.LOCAL_DRAFT: speculation.colocated_drafter}
        wanted = _fallbacks(speculation)
        return {miss: name for miss, name in drafters.items() if name and miss in wanted}

    def _positions(self, used: list[SpeculationConfig]) -> int | None:
        """Those that all drafters of a source were made for; None: no fewer than rows have."""
        max_len = self._sampler.max_model_len
        known = {wish.drafter: colocated_drafters.positions_of(wish) or max_len for wish in used}
        drafter, least = min(known.items(), key=lambda item: item[1])
        if least >= max_len:
            return None
        if drafter not in self._short:
            self._short.add(drafter)
            log.warning(
                "%s was made for %d positions and model.max_model_len is %d: rows are decoded "
                "without drafts beyond position %d", drafter, least, max_len, least,
            )  # fmt: skip
        return least

    @property
    def _device(self) -> torch.device:
        return self._runner.backend.device

    def _limits(self, gamma: int, feature_size: int, positions: int | None) -> LinkLimits:
        return LinkLimits(
            vocab_size=self._runner.model.config.vocab_size,
            gamma=gamma,
            feature_size=feature_size,
            max_positions=positions or self._sampler.max_model_len,
            max_rows=self._config.engine.max_batch_rows,
            max_kept=NUM_KEPT,
        )

    def _links(self, arguments: ChildArguments, name: str, limits: LinkLimits) -> DraftLinks:
        config, folder = self._config, arguments.control_dir
        regions = [SharedRegion.attach(fd) for fd in arguments.link_fds]
        lanes = open_hub(config, limits).lanes if config.far_drafts else {}
        peers = [
            DraftPeer(draft, TargetLinkEnd(lane, lane, limits), lane, is_here=False)
            for draft, lane in lanes.items()
        ]
        own = [draft for draft in range(len(regions) + len(lanes)) if draft not in lanes]
        peers += [
            DraftPeer(draft, self._link_end(draft, region, limits, folder), region)
            for draft, region in zip(own, regions, strict=True)
        ]
        return DraftLinks(
            sorted(peers, key=lambda peer: peer.index),
            DraftControlTarget(folder, len(peers), config.message_cores, lanes),
            limits=limits,
            drafter=name,
            timeout_s=config.speculation.draft_timeout_s,
        )

    def _link_end(
        self, draft: int, region: SharedRegion, limits: LinkLimits, folder: Path
    ) -> TargetLinkEnd:
        speculation = self._config.speculation
        if speculation.link != "nccl":
            return RingTargetEnd(region, limits)
        meeting = Meeting(
            folder=folder,
            draft=draft,
            device=self._device,
            timeout_s=speculation.draft_timeout_s,
        )
        return GroupTargetEnd(region, limits, meeting)

    def _colocated(self, speculation: SpeculationConfig) -> ColocatedDraft:
        """Made once a drafter: modes and fall-backs share its contexts."""
        name = speculation.drafter or ""
        if name not in self._drafts:
            self._drafts[name] = self._load(speculation)
        return self._drafts[name]

    def _load(self, speculation: SpeculationConfig) -> ColocatedDraft:
        runner, max_len = self._runner, self._sampler.max_model_len
        num_tokens = runner.cache.num_blocks * runner.cache.block_size
        drafter = colocated_drafters.load(
            speculation,
            target=self._target,
            model=runner.model,
            backend=runner.backend,
            num_context_tokens=num_tokens,
            max_positions=max_len,
        )
        features = None
        if drafter.features is not None:
            features = self._features_of(speculation.drafter or "")
        draft = ColocatedDraft(
            drafter,
            features,
            vocab_size=runner.model.config.vocab_size,
            num_kept=NUM_KEPT,
            gamma=speculation.gamma,
            max_extension=self._config.engine.max_batch_tokens,
            backend=runner.backend,
        )
        draft.capacity = self._capacity(num_tokens, max_len)
        if speculation.weighs_costs or speculation.mode == "auto":
            max_rows = self._config.engine.max_batch_rows
            positions = colocated_drafters.positions_of(speculation) or max_len
            measured = partial(
                colocated_drafters.times_of,
                drafter,
                model=runner.model,
                backend=runner.backend,
                max_rows=max_rows,
                max_positions=min(max_len, positions),
            )
            file = DraftFile(self._config, speculation, "target", probe())
            times = recall(file, measured)
            draft.pace = DraftPace(lambda: times)
        return draft

    def _capacity(self, num_tokens: int, max_len: int) -> ContextCapacity:
        model = self._runner.model
        token_bytes = kv_bytes_per_token(
            model.config, dtype=self._config.kv_dtype, tensor_parallel=model.parallel.size
        )
        return ContextCapacity(num_tokens, token_bytes, max_len)

    def _features_of(self, folder: str) -> FeatureCache | None:
        """What the drafter in `folder` reads; kept once for all that use it."""
        if folder not in self._features:
            spec = colocated_drafters.load_feature_spec(
                folder,
                target=self._target,
                model=self._runner.model,
                backend=self._runner.backend,
            )
            self._features[folder] = None if spec is None else self._runner.keep_features(spec)
        return self._features[folder]

    def _admission(
        self,
        acceptance: Acceptance,
        positions: int | None,
        *,
        drafts: DraftPace | None = None,
        may_pause: bool = False,
        are_blind: bool = True,
        is_asynchronous: bool = False,
    ) -> Admission:
        speculation, costs = self._config.speculation, None
        if speculation.weighs_costs:
            prices = RoundPrices(self._runner.backend, self._runner.steps)
            costs = RoundCosts(prices, drafts, may_pause, are_blind)
        return Admission(
            acceptance=acceptance,
            scheduler=self._scheduler,
            sampler=self._sampler,
            budget=policy_named(speculation.policy, speculation.min_survival),
            costs=costs,
            max_positions=positions,
            is_asynchronous=is_asynchronous,
        )
