"""Brings one target rank up: group, model, cache, loop. What is decided here is only order."""

import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from specserve.backends import choose as backends
from specserve.backends.base import Backend
from specserve.backends.choose import choose_backend
from specserve.errors import Exhausted, SpecserveError
from specserve.grammars.compiler import compiler_of
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from specserve.processes.process import (
    ChildArguments,
    keep_freed_memory,
    pin,
    report_failure,
    report_ready,
    sleep_exactly,
)
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import BLOCK_SIZE, ResolvedConfig, read_resolved
from specserve.settings.hardware import probe
from specserve.settings.resolve import kv_bytes_per_token
from specserve.settings.sizes import parse_count
from specserve.settings.step_files import StepFile
from specserve.telemetry import setup_logging
from specserve.transport.control.control import TargetControl
from specserve.transport.group_link.nccl import set_nccl_environment
from specserve.transport.rendezvous import use_own_interface
from specserve.types import Ready
from specserve.validation import Limits
from target_node.batch import ForwardBatch
from target_node.blocks import BlockPool
from target_node.meeting import await_leader, begin_to_lead, join_group
from target_node.node import TargetNode, follow
from target_node.planning import step_profile
from target_node.ranks import Ranks, watch
from target_node.runner import Runner
from target_node.sampler import Sampler
from target_node.scheduler import Scheduler
from target_node.speculation.start import build_speculation

log = logging.getLogger(__name__)

DRAFT_LAYERS = 5  # of a large drafter
CUDA_MEMORY_SHARE = 0.85  # of what is free once the weights are there
# What gloo, NCCL and stores say of a rank that has ended, and gloo of one that does not answer.
_PEER_IS_GONE = (
    "onnection closed by peer",
    "onnection reset by peer",
    "onnection was likely closed",
    "remote process exited",
)
_PEER_IS_SILENT = ("Timed out waiting",)


def preload() -> None:
    """What a forkserver does for all ranks on CPUs: the imports above, and kernels."""
    torch.set_num_threads(1)  # what is forked would have none of others
    backends.preload()


def run_rank(arguments: ChildArguments) -> int:
    """The whole life of a rank; the exit code of its process."""
    setup_logging(f"target {arguments.rank}")
    try:
        config = read_resolved(arguments.config)
        setup_logging(f"target {arguments.rank}", config.telemetry.log_level)
        # Of the model as it is read now; the leader's business alone.
        step_file = StepFile(config, probe()) if arguments.rank == 0 else None
        ranks, runner = _build(config, arguments)
        node = None
        if step_file is not None:
            node = _leader(config, arguments, ranks, runner)
            _begin_to_lead(node, config, arguments, step_file)
    except (SpecserveError, OSError, RuntimeError, ValueError) as error:
        if (loss := loss_of_peer(error, arguments.rank)) is not None:
            report_failure(arguments.ready_fd, loss, is_consequence=True)
            return 1
        # A user's error is one line, which the supervisor prints; a defect needs its traceback.
        level = logging.DEBUG if isinstance(error, SpecserveError) else logging.ERROR
        log.log(level, "cannot start: %s", error, exc_info=level == logging.ERROR)
        report_failure(arguments.ready_fd, error)
        return 2
    try:
        if node is not None and step_file is not None:
            serve(node, config, arguments, step_file)
        else:
            report_ready(arguments.ready_fd)
            if await_leader(config, arguments.control_dir):
                follow(ranks, runner)
    except Exception as error:
        if (loss := loss_of_peer(error, arguments.rank)) is not None:
            report_failure(arguments.ready_fd, loss, is_consequence=True)
            return 1
        failure = f"target rank {arguments.rank} failed: {type(error).__name__}: {error}"
        report_failure(arguments.ready_fd, failure)
        raise
    if ranks.size > 1:
        runner.backend.forget()
        dist.destroy_process_group()
    return 0


def loss_of_peer(error: Exception, rank: int) -> str | None:
    """What `error` says of another rank that has ended or hangs, in words; None if nothing."""
    text = str(error) if isinstance(error, RuntimeError) else ""
    if any(words in text for words in _PEER_IS_GONE):
        return f"target rank {rank} has lost another rank"
    if any(words in text for words in _PEER_IS_SILENT):
        return f"target rank {rank} waited in vain for another rank (engine.hang_timeout_s)"
    return None


def _build(config: ResolvedConfig, arguments: ChildArguments) -> tuple[Ranks, Runner]:
    placement = config.placement("target", arguments.rank)
    pin(placement)
    sleep_exactly()
    torch.set_num_threads(config.topology.threads)
    device = torch.device(placement.device)
    backends.occupy(device)
    use_own_interface(config)
    if not placement.is_on_cpu:
        sharing = config.num_sharing(placement.device)
        set_nccl_environment(f"target {arguments.rank}", shares_device=sharing > 1)
    join_group(config, arguments)
    ballast = parse_count(config.model.ballast) if config.model.ballast else 0
    folder = Path(config.model.target or "")
    backend = choose_backend(device, cuda_graphs=bool(config.engine.cuda_graphs))
    model = load_model(
        folder,
        backend=backend,
        dtype=getattr(torch, config.model.dtype or "float32"),
        parallel=TensorParallel(arguments.rank, arguments.world_size),
        ballast=ballast,
        # What a config claims beyond that would only be memory.
        num_positions=config.model.max_model_len,
        deterministic=bool(config.engine.deterministic),
    )
    runner = Runner(
        model,
        backend=backend,
        num_blocks=_num_blocks(config, model, backend),
        block_size=BLOCK_SIZE,
        deterministic=bool(config.engine.deterministic),
        kv_dtype=getattr(torch, config.kv_dtype),
    )
    keep_freed_memory()
    ranks = Ranks(arguments.world_size, hang_timeout_s=config.engine.hang_timeout_s)
    return ranks, runner


def _num_blocks(config: ResolvedConfig, model: Transformer, backend: Backend) -> int:
    """Blocks of the pool, the null block included, the same on every rank."""
    if config.num_blocks is not None:
        return config.num_blocks + 1
    spec, ranks = model.config, model.parallel.size
    per_token = kv_bytes_per_token(spec, dtype=config.kv_dtype, tensor_parallel=ranks)
    if config.speculation.mode != "off":
        # Features and a drafter's context grow with the pool; the drafter is not loaded yet.
        drafted = spec.hidden_size + 2 * DRAFT_LAYERS * spec.num_kv_heads * spec.head_dim
        per_token += drafted * model.embedding.dtype.itemsize
    block_bytes = per_token * BLOCK_SIZE
    free = backend.free_bytes()
    room = int(free * CUDA_MEMORY_SHARE) // config.num_sharing(str(backend.device))
    count = torch.tensor([room // block_bytes])
    if ranks > 1:
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
    if count.item() < 2:
        raise Exhausted(f"kv_memory: {free} bytes free after the weights hold no KV block")
    return int(count.item())


def _leader(
    config: ResolvedConfig,
    arguments: ChildArguments,
    ranks: Ranks,
    runner: Runner,
) -> TargetNode:
    """Rank 0's node, its control plane open."""
    spec, engine = runner.model.config, config.engine
    pool = BlockPool(runner.cache.num_blocks, BLOCK_SIZE, prefix_cache=engine.prefix_cache)
    max_model_len = context_len(config.model.max_model_len or spec.max_position_embeddings, pool)
    scheduler = Scheduler(
        pool, max_batch_rows=engine.max_batch_rows, max_batch_tokens=engine.max_batch_tokens
    )
    sampler = Sampler(
        eos_token_ids=tuple(spec.eos_token_ids),
        max_model_len=max_model_len,
        backend=runner.backend,
        default_method=_default_method(config),
        grammars=compiler_of(Path(config.model.target or ""), spec),
    )
    return TargetNode(
        control=TargetControl(arguments.control_dir, config.message_cores),
        scheduler=scheduler,
        runner=runner,
        sampler=sampler,
        speculation=build_speculation(config, arguments, runner, scheduler, sampler),
        ranks=ranks,
        limits=Limits(vocab_size=spec.num_known_tokens, max_model_len=max_model_len),
    )


def context_len(wanted: int, pool: BlockPool) -> int:
    """Tokens of `wanted` that a row may have: no more than the pool holds.

    Where it was sized before, the settings were resolved so. Where it was measured here,
    nobody has been told yet.
    """
    room = pool.num_blocks * pool.block_size
    if room < wanted:
        log.warning(
            "max_model_len is %d instead of %d: the %d KV blocks that memory has room for hold no "
            "more", room, wanted, pool.num_blocks,
        )  # fmt: skip
    return min(room, wanted)


def _default_method(config: ResolvedConfig) -> VerificationMethod:
    """Without drafts there is nothing to verify, and coupled is what `sample` does anyway."""
    if config.speculation.mode == "off":
        return VerificationMethod.COUPLED
    return VerificationMethod(config.speculation.verification)


def _begin_to_lead(
    node: TargetNode, config: ResolvedConfig, arguments: ChildArguments, step_file: StepFile
) -> None:
    """The other ranks follow from now on."""
    signal.signal(signal.SIGTERM, lambda *_: setattr(node, "is_stopping", True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin_to_lead(config, arguments)

    def tell(problem: str) -> None:
        # With other ranks it may wait for one of them.
        is_consequence = arguments.world_size > 1
        problem = f"target rank {arguments.rank}: {problem}"
        report_failure(arguments.ready_fd, problem, is_consequence=is_consequence)

    watch(lambda: node.progress, config.engine.hang_timeout_s, tell)
    if plans_by_steps(node, config):
        know_steps(node, step_file)


def serve(
    node: TargetNode, config: ResolvedConfig, arguments: ChildArguments, step_file: StepFile
) -> None:
    """Announce what is served and run the loop until SIGTERM."""
    node.control.announce(_ready(node, config))
    report_ready(arguments.ready_fd)
    try:
        node.run()
    finally:
        try:
            node.control.close()  # first: what it still has to say is for clients
        finally:
            node.speculation.close()
        if plans_by_steps(node, config):
            keep_steps(node, step_file)


def plans_by_steps(node: TargetNode, config: ResolvedConfig) -> bool:
    """Whether anybody asks what forwards take."""
    speculation = config.speculation
    return bool(node.speculation.gamma) and (speculation.weighs_costs or speculation.mode == "auto")


def know_steps(node: TargetNode, file: StepFile) -> None:
    """What forwards take, from an earlier start or by running some."""
    if (record := file.read()) is not None:
        node.runner.steps.recall(record)
        check_steps(node)
        return
    profile_steps(node)
    if node.runner.steps.cells:
        file.write(node.runner.steps.as_record(file.made_for))


def keep_steps(node: TargetNode, file: StepFile) -> None:
    """What rounds have taught, for the next start."""
    if not node.runner.steps.num_predicted:
        return
    file.write(node.runner.steps.as_record(file.made_for))
    log.debug(
        "the time of %d forwards was predicted; the median is off by %.1f %%",
        node.runner.steps.num_predicted, 100 * (node.runner.steps.median_error or 0.0),
    )  # fmt: skip


def profile_steps(node: TargetNode) -> None:
    """Forwards as rounds will run them, on every rank."""
    _steps_by(partial(step_profile.measure, max_keys=node.limits.max_model_len), node)


def check_steps(node: TargetNode) -> None:
    """What an earlier start has measured, at today's pace."""
    _steps_by(step_profile.check, node)


def _steps_by(learn: Callable[..., None], node: TargetNode) -> None:
    learn(
        node.runner.steps,
        _timed_forward(node),
        node.scheduler.pool,
        max_tokens=node.scheduler.max_batch_tokens,
        rehearse=node.runner.backend.is_asynchronous,
    )


def _timed_forward(node: TargetNode) -> Callable[[ForwardBatch], None]:
    def forward(batch: ForwardBatch) -> None:
        node.progress += 1  # which the watchdog looks at
        logits = node.forward(batch)
        if logits is not None:
            logits[0, 0].item()  # which a device has to compute first

    return forward


def _ready(node: TargetNode, config: ResolvedConfig) -> Ready:
    model, spec, engine = node.runner.model, node.runner.model.config, config.engine
    return Ready(
        model=config.model.name or Path(config.model.target or "").name,
        model_type=spec.model_type,
        vocab_size=spec.num_known_tokens,
        max_model_len=node.limits.max_model_len,
        num_layers=spec.num_layers,
        num_params=model.num_params - model.ballast_params,
        ballast_params=model.ballast_params,
        dtype=str(model.dtype).removeprefix("torch."),
        half_weights=model.half_weights,
        kv_dtype=str(node.runner.cache.kept_dtype).removeprefix("torch."),
        device=str(model.embedding.device),
        tensor_parallel=model.parallel.size,
        oversubscribed=config.oversubscribed,
        deterministic=bool(engine.deterministic),
        cuda_graphs=bool(engine.cuda_graphs),
        backend=node.runner.backend.description,
        block_size=BLOCK_SIZE,
        num_blocks=node.scheduler.pool.num_blocks,
        max_batch_rows=engine.max_batch_rows,
        max_batch_tokens=engine.max_batch_tokens,
        eos_token_ids=tuple(spec.eos_token_ids),
        speculation=config.speculation.mode,
        drafter=node.speculation.drafter,
        verification=node.sampler.default_method if node.speculation.gamma else "",
        gamma=node.speculation.gamma,
    )
