"""Brings one draft process up: drafter, link, loop. What is decided here is only order."""

import itertools
import logging
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from draft_node.draft_slots import DraftingFailed, DraftSlots
from draft_node.drafter_share import DrafterShare
from draft_node.node import DraftNode, Reach
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.prespeculation import PreSpeculation
from draft_node.several_targets import Served, SeveralTargets, TargetWords
from specserve.backends import choose as backends
from specserve.backends.base import Backend
from specserve.backends.choose import choose_backend
from specserve.drafters.colocated import describe, positions_of
from specserve.drafters.context import ContextCapacity
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.draft_times import recall
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.load import (
    DEFAULT_GAMMA,
    MOST_HIDDEN_TOKENS,
    USUAL_HIDDEN_TOKENS,
    DrafterOptions,
    load_drafter,
)
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import Drafter
from specserve.drafters.spec import LocalHeadSpec
from specserve.drafters.usual_acceptance import usual_acceptance
from specserve.drafters.warm_up import time_drafts, warm_up
from specserve.drafters.weights import TargetWeights
from specserve.errors import SpecserveError, Unavailable
from specserve.grammars.compiler import compiler_of
from specserve.models.ballast import with_ballast
from specserve.models.config import ModelSpec
from specserve.processes.process import (
    ChildArguments,
    keep_freed_memory,
    pin,
    report_failure,
    report_ready,
    sleep_exactly,
)
from specserve.settings.agreement import MAX_POSITIONS, agreed_with_drafts
from specserve.settings.config import (
    BLOCK_SIZE,
    DRAFTER_BITS,
    NUM_KEPT,
    ResolvedConfig,
    read_resolved,
)
from specserve.settings.draft_files import DraftFile
from specserve.settings.draft_node import ATTACH_TO
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hardware import probe
from specserve.settings.hosts import reach
from specserve.settings.resolve import kv_bytes_per_token
from specserve.settings.sizes import parse_count
from specserve.settings.topology import parse_topology
from specserve.telemetry import setup_logging
from specserve.transport.control.draft_control import Attach, DraftControl, DraftControlDraft
from specserve.transport.group_link.ends import GroupDraftEnd, Meeting
from specserve.transport.group_link.nccl import set_nccl_environment
from specserve.transport.link.ends import DraftLinkEnd
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.ring import RingDraftEnd, SharedRegion
from specserve.transport.link.words import OwnWords
from specserve.transport.network_link.connection import (
    NetworkDraftEnd,
    TargetConnection,
    ToldWords,
)
from specserve.transport.network_link.wire import place_of
from specserve.transport.rendezvous import DRAFT_HUB, finder
from specserve.types import DRAFT_BATCH_SIZE

CUDA_MEMORY_SHARE = 0.5  # of what is free, for contexts: weights and draft batches need the rest
_TIMED_SIZES = (1, 4, DRAFT_BATCH_SIZE)
_MAX_CUDA_CONTEXTS = 64  # of full length; more would only lie idle
_MEET_S = 5.0  # that a draft node waits for its targets before it is ready without them

log = logging.getLogger(__name__)


def preload() -> None:
    """What a forkserver does for all draft processes on CPUs: the imports above, and kernels."""
    torch.set_num_threads(1)  # what is forked would have none of others
    backends.preload()


def run_draft(arguments: ChildArguments) -> int:
    """The whole life of a draft process; its exit code."""
    setup_logging(f"draft {arguments.rank}")
    try:
        config = read_resolved(arguments.config)
        setup_logging(f"draft {arguments.rank}", config.telemetry.log_level)
        pin(config.placement("draft", arguments.rank))  # and every thread that is started here
        region = _open_region(arguments)
        if config.targets:
            return _serve_several(config, arguments, region)
        control = _open_control(config, arguments)
        node = _build(config, arguments, region, control)
    except (SpecserveError, OSError, RuntimeError, ValueError) as error:
        # A user's error is one line, which the supervisor prints; a defect needs its traceback.
        level = logging.DEBUG if isinstance(error, SpecserveError) else logging.ERROR
        log.log(level, "cannot start: %s", error, exc_info=level == logging.ERROR)
        report_failure(arguments.ready_fd, error)
        return 2
    try:
        return _run(node, arguments)
    finally:
        control.close()


def _run(node: DraftNode | SeveralTargets, arguments: ChildArguments) -> int:
    _stop_by_signal(node)
    keep_freed_memory()
    report_ready(arguments.ready_fd)
    try:
        node.run()
    except DraftingFailed as error:
        log.error("the drafter is of no use: %s", error)
        return 1
    return 0


def _stop_by_signal(node: DraftNode | SeveralTargets) -> None:
    signal.signal(signal.SIGTERM, lambda *_: setattr(node, "is_stopping", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _serve_several(config: ResolvedConfig, arguments: ChildArguments, region: SharedRegion) -> int:
    """Of a draft node that `specserve draft` has started. Raises what `run_draft` reports."""
    parts = _load_parts(config, arguments.rank)
    region.draft_pid = os.getpid()
    agreed = agreed_with_drafts(
        parts.target.folder,
        config.speculation,
        feature_size=parts.drafter.feature_size,
        gamma=parts.drafter.gamma,
    )
    agreed[MAX_POSITIONS] = str(parts.options.max_positions)
    rows, num_shares = itertools.count(), len(config.targets)
    targets: list[Served] = []
    for name in config.targets:
        place = reach(name, ATTACH_TO, is_private=config.topology.private_network)
        connection = TargetConnection(
            b"node " + secrets.token_hex(8).encode(),
            partial(place_of, place.address, place.port),
        )
        node = parts.node(
            parts.share(rows, num_shares),
            control=connection,
            words=ToldWords(TargetWords(), connection),
            open_link=partial(NetworkDraftEnd, connection),
            agreed=agreed,
            num_shares=num_shares,
            target=name,
        )
        node.reach = Reach(parts.target.spec.vocab_size, parts.options.max_positions)
        targets.append(Served(name, node, connection))
    several = SeveralTargets(targets, region)
    _stop_by_signal(several)
    try:
        several.meet(_MEET_S)
    except BaseException:
        several.close()
        raise
    return _run(several, arguments)


def _open_region(arguments: ChildArguments) -> SharedRegion:
    if len(arguments.link_fds) != 1:
        raise Unavailable(f"link: a draft process has one, not {len(arguments.link_fds)}")
    return SharedRegion.attach(arguments.link_fds[0])


def _open_control(config: ResolvedConfig, arguments: ChildArguments) -> DraftControl:
    if arguments.rank not in config.far_drafts:
        return DraftControlDraft(arguments.control_dir, arguments.rank)
    return TargetConnection(arguments.rank, finder(config, DRAFT_HUB))


def _build(
    config: ResolvedConfig,
    arguments: ChildArguments,
    region: SharedRegion,
    control: DraftControl,
) -> DraftNode:
    parts = _load_parts(config, arguments.rank)
    return parts.node(
        parts.drafter,
        control=control,
        words=ToldWords(region, control) if isinstance(control, TargetConnection) else region,
        open_link=_link_opener(config, arguments, region, control, parts.backend.device),
    )


@dataclass(frozen=True)
class _Parts:
    """What a draft process has once, however many targets it serves."""

    config: ResolvedConfig
    target: TargetWeights
    backend: Backend
    options: DrafterOptions
    drafter: Drafter
    settings: BatchSettings
    introduction: Attach

    def share(self, rows: Iterator[int], num_shares: int) -> DrafterShare:
        """The drafter for one of so many targets, by numbers of rows that all of them draw from."""
        num_tokens = self.options.num_context_tokens // num_shares
        takes_none = self.config.speculation.drafter == NGRAM
        return DrafterShare(self.drafter, rows, None if takes_none else num_tokens)

    def node(
        self,
        drafter: Drafter,
        *,
        control: DraftControl,
        words: OwnWords,
        open_link: Callable[[LinkLimits], DraftLinkEnd],
        agreed: dict[str, str] | None = None,
        num_shares: int = 1,
        target: str = "",
    ) -> DraftNode:
        """For one target, with streams of its own; `drafter` is all of it or a share."""
        streams = DraftSlots(
            drafter,
            dtype=self.options.dtype,
            device=self.backend.device,
            capacity=_capacity(self.config, self.target.spec, self.options, num_shares),
            grammars=compiler_of(self.target.folder, self.target.spec),
        )
        node = DraftNode(
            msgspec.structs.replace(self.introduction, agreed=agreed or {}),
            streams=streams,
            prespeculation=PreSpeculation(drafter, streams, self.settings, backend=self.backend),
            control=control,
            words=words,
            open_link=open_link,
            max_extension=self.config.engine.max_batch_tokens,
        )
        node.target = target or node.target
        return node


def _load_parts(config: ResolvedConfig, rank: int) -> _Parts:
    placement, speculation = config.placement("draft", rank), config.speculation
    sleep_exactly()
    torch.set_num_threads(speculation.draft_threads or config.topology.threads)
    device = torch.device(placement.device)
    backends.occupy(device)
    if not placement.is_on_cpu:
        sharing = config.num_sharing(placement.device)
        set_nccl_environment(f"draft {rank}", shares_device=sharing > 1)
    dtype = getattr(torch, config.state_dtype)
    target = TargetWeights.of(Path(config.model.target or ""))
    backend = choose_backend(device, cuda_graphs=bool(config.engine.cuda_graphs))
    options = _options(config, target, dtype, backend)
    drafter = _load(config, target, options)
    measured = partial(time_drafts, drafter, options, sizes=_TIMED_SIZES, num_kept=NUM_KEPT)
    times = recall(DraftFile(config, speculation, "draft", probe()), measured)
    usual = usual_acceptance(speculation, speculation.drafter or "", target.folder)
    settings = BatchSettings(
        fan_out=speculation.fan_out,
        saguaro_c=speculation.saguaro_c,
        acceptance=usual.of(speculation.verification, 1)[0],
        times=tuple(times.all),
    )
    if speculation.gamma is None and isinstance(drafter, LanguageModelDrafter):
        # Whose blocks nobody has fixed; others are as long as gamma.
        knows = drafter.probs_confidence is not None
        most = MOST_HIDDEN_TOKENS if knows else drafter.gamma
        settings = replace(
            settings, usual_tokens=USUAL_HIDDEN_TOKENS, most_tokens=most, goes_beyond=knows
        )
    introduction = Attach(
        draft=rank,
        pid=os.getpid(),
        drafter=drafter.name,
        gamma=drafter.gamma,
        feature_size=drafter.feature_size,
        times=tuple(times.all),
        enter_s=times.enter_s,
    )
    return _Parts(config, target, backend, options, drafter, settings, introduction)


def _capacity(
    config: ResolvedConfig, spec: ModelSpec, options: DrafterOptions, num_shares: int
) -> ContextCapacity:
    """`spec`: the target's."""
    if config.model.ballast is not None:
        spec = with_ballast(spec, parse_count(config.model.ballast))
    num_ranks = parse_topology(config.topology.topology).num_target_ranks
    token_bytes = kv_bytes_per_token(spec, dtype=config.kv_dtype, tensor_parallel=num_ranks)
    num_tokens = options.num_context_tokens // num_shares
    # Memory is said for all shares together.
    return ContextCapacity(num_tokens, num_shares * token_bytes, options.max_positions)


def _link_opener(
    config: ResolvedConfig,
    arguments: ChildArguments,
    region: SharedRegion,
    control: DraftControl,
    device: torch.device,
) -> Callable[[LinkLimits], DraftLinkEnd]:
    """What makes this side's end of the configured link, or of that to another machine."""
    if isinstance(control, TargetConnection):
        return lambda limits: NetworkDraftEnd(control, limits)
    speculation = config.speculation
    if speculation.link != "nccl":
        return lambda limits: RingDraftEnd(region, limits)
    meeting = Meeting(
        folder=arguments.control_dir,
        draft=arguments.rank,
        device=device,
        timeout_s=speculation.draft_timeout_s,
    )
    return lambda limits: GroupDraftEnd(region, limits, meeting)


def _options(
    config: ResolvedConfig, target: TargetWeights, dtype: torch.dtype, backend: Backend
) -> DrafterOptions:
    speculation = config.speculation
    max_positions = config.model.max_model_len or target.spec.max_position_embeddings
    max_positions = min(max_positions, positions_of(speculation) or max_positions)
    options = DrafterOptions(
        dtype=dtype, backend=backend, num_context_tokens=0, max_positions=max_positions
    )
    if speculation.drafter == NGRAM:
        return options
    folder = Path(speculation.drafter or "")
    return replace(
        options,
        num_context_tokens=_num_context_tokens(config, folder, max_positions, backend),
        local_head=Path(speculation.local_head) if speculation.local_head else None,
        gamma=describe(speculation)[1],
        bits=DRAFTER_BITS,
    )


def _load(config: ResolvedConfig, target: TargetWeights, options: DrafterOptions) -> Drafter:
    """The configured drafter, warm.

    Of the target it reads the embedding and the head at most.
    """
    speculation = config.speculation
    if speculation.drafter == NGRAM:  # its first calls are a process's first on the device, too
        drafter = NgramDrafter(gamma=speculation.gamma or DEFAULT_GAMMA)
    else:
        drafter = load_drafter(Path(speculation.drafter or ""), target, options)
    warm_up(drafter, options, size=DRAFT_BATCH_SIZE, num_kept=NUM_KEPT)
    return drafter


def _num_context_tokens(
    config: ResolvedConfig, folder: Path, max_positions: int, backend: Backend
) -> int:
    """As many as the target has KV for, where it knows that before it starts."""
    if config.num_blocks is not None:
        return config.num_blocks * BLOCK_SIZE
    spec = read_draft_spec(folder)
    if isinstance(spec, LocalHeadSpec):
        return max_positions  # refused where it is loaded
    room = int(backend.free_bytes() * CUDA_MEMORY_SHARE)
    room //= config.num_sharing(str(backend.device))
    num_tokens = room // _bytes_per_token(spec.decoder, config.state_dtype)
    return min(num_tokens, _MAX_CUDA_CONTEXTS * max_positions)


def _bytes_per_token(spec: ModelSpec, dtype: str) -> int:
    itemsize = getattr(torch, dtype).itemsize
    # A hidden state besides: some drafters keep the features themselves.
    width = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim + spec.hidden_size
    return width * itemsize
