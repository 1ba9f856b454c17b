# pyright: strict
"""Every "auto" decided once: `resolve(config, hardware, spec, folder)` is pure.

Reads no file and no environment, so a resolution can be tested and replayed for any machine.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from specserve.errors import InvalidField, Unsupported
from specserve.models.ballast import with_ballast
from specserve.models.config import ModelSpec
from specserve.models.dealing import check_ranks, deal_heads
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import (
    BLOCK_SIZE,
    Config,
    EngineConfig,
    ModelConfig,
    ResolvedConfig,
    SpeculationConfig,
    TopologyConfig,
    state_dtype,
)
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hardware import Hardware
from specserve.settings.hosts import HostFacts
from specserve.settings.placing import draft_threads, place, resolve_device
from specserve.settings.sizes import format_bytes, parse_bytes, parse_count
from specserve.settings.spread import Spread, tightest
from specserve.settings.target_source import default_name
from specserve.settings.topology import (
    Topology,
    parse_topology,
    resolve_collectives,
    resolve_link,
    resolve_mps,
)
from specserve.telemetry import LOG_LEVELS

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_OTHER_DTYPES = {  # what else they are called
    "fp32": "float32", "f32": "float32", "float": "float32",
    "bf16": "bfloat16",
    "fp16": "float16", "f16": "float16", "half": "float16",
}  # fmt: skip
_NAMES = {  # keys of [speculation] that take one of a few names
    "mode": ("off", "sync", "async", "auto"),
    "verification": tuple(method.value for method in VerificationMethod),
    "link": ("shm", "nccl"),
    "verify_policy": ("fixed", "threshold", "price", "causal", "barrier", "global"),
    "miss_policy": ("auto", "skip", "ngram", "local_draft", "draft_now"),
}

_MODEL_NAMES = {  # the same of [model]
    "generation_config": ("auto", "none"),
    "tool_call_parser": ("auto", "hermes", "llama3_json"),
}
_SGLANG = {"qwen": "hermes", "qwen25": "hermes", "llama3": "llama3_json"}  # its parsers' names
_RENAMED = {"draft_here": "local_draft"}

_KV_SHARE_OF_MEMORY = 0.25  # of host memory, all ranks together
_DRAFT_LAYERS = 5  # of a large drafter
_FULL_CONTEXTS = 16  # more full-length contexts at once than this rarely pays on CPU


def resolve(
    config: Config,
    hardware: Hardware,
    spec: ModelSpec,
    folder: Path,
    facts: Sequence[HostFacts] = (),
    *,
    has_ranks: bool = True,
) -> ResolvedConfig:
    """Decide everything for the model in `folder`, whose architecture is `spec`.

    `facts`: of all machines in order, where there are several; all of them decide the same.
    `has_ranks`: the target's weights are loaded. Raises InvalidField for a wrong value, Unsupported
    for a wish this machine or model cannot meet.
    """
    topology = parse_topology(config.topology.topology)
    _check_wishes(config, topology)
    _check_batch(config.engine)
    check_ranks(spec, topology.num_target_ranks)
    device = resolve_device(config, topology, hardware)
    placed = place(config, topology, device, hardware, facts)
    shares_devices = placed.is_oversubscribed
    if facts:
        hardware = tightest(hardware, facts, placed)
    link = resolve_link(config.speculation.link, device, shares_devices=shares_devices)
    collectives = resolve_collectives(device, shares_devices=shares_devices)
    mps = resolve_mps(config.topology.mps, device, shares_devices=shares_devices)
    model = _resolve_model(config.model, device, spec, folder)
    if model.ballast is not None:
        spec = with_ballast(spec, parse_count(model.ballast, "model.ballast"))
    context_len, dtype = model.max_model_len or spec.max_position_embeddings, model.dtype or ""
    ranks = topology.num_target_ranks
    kept, kv_dtype = state_dtype(device, dtype), _resolve_kv_dtype(config.engine, device, dtype)
    obstacle = _graph_obstacle(topology, device, collectives)
    engine = _resolve_engine(config.engine, device, kv_dtype, obstacle)
    pool = _KvPool.of(
        kv_bytes_by_rank(spec, dtype=kv_dtype, tensor_parallel=ranks),
        _draft_bytes_per_token(config.speculation, spec, dtype=kept),
        context_len,
        hardware,
    )
    num_blocks = _resolve_num_blocks(config.engine, device, pool)
    if num_blocks is not None:
        model = _fit_context(config, model, num_blocks)
    if device == "cpu":
        weights = cpu_weight_bytes(spec, model, ranks) if has_ranks else 0
        _check_memory(weights, (num_blocks or 0) * pool.bytes_in_all, hardware.available_memory)
    return ResolvedConfig(
        model=model,
        topology=_resolve_topology(config, str(topology), device, mps, placed),
        engine=_with_pool(engine, num_blocks, pool),
        server=msgspec.structs.replace(config.server, http_port=config.server.http_port_wish),
        speculation=_resolve_speculation(config, link),
        telemetry=config.telemetry,
        placements=placed.placements,
        oversubscribed=placed.is_oversubscribed,
        num_blocks=num_blocks,
        collectives=collectives,
        hosts=tuple(each.address for each in facts),
    )


def _resolve_topology(
    config: Config, topology: str, device: str, mps: bool | None, placed: Spread
) -> TopologyConfig:
    spread = placed.text or None
    return msgspec.structs.replace(
        config.topology, topology=topology, device=device, mps=mps, spread=spread
    )


def _resolve_speculation(config: Config, link: str | None) -> SpeculationConfig:
    return msgspec.structs.replace(
        config.speculation,
        draft_threads=draft_threads(config),
        verify_policy=config.speculation.policy,
        link=link,
    )


def kv_bytes_by_rank(spec: ModelSpec, *, dtype: str, tensor_parallel: int) -> list[int]:
    """Bytes of keys and values that one token takes on each rank, over all layers with ballast."""
    of_head = 2 * spec.num_layers * spec.head_dim * _DTYPE_BYTES[dtype]
    dealt = deal_heads(spec.num_heads, spec.num_kv_heads, tensor_parallel)
    return [len(heads.kv) * of_head for heads in dealt]


def kv_bytes_per_token(spec: ModelSpec, *, dtype: str, tensor_parallel: int = 1) -> int:
    """The same of the rank with the most: all ranks' pools have equally many blocks."""
    return max(kv_bytes_by_rank(spec, dtype=dtype, tensor_parallel=tensor_parallel))


def cpu_weight_bytes(spec: ModelSpec, model: ModelConfig, num_ranks: int) -> int:
    """Bytes of the target's weights on all ranks together; `model` is resolved."""
    weights = spec.num_params * _DTYPE_BYTES[model.dtype or ""]
    # Every rank looks tokens and positions up in whole tables, whatever products are made with.
    rotary = 2 * (model.max_model_len or spec.max_position_embeddings) * spec.head_dim
    tables = spec.vocab_size * spec.hidden_size + rotary
    return weights + num_ranks * tables * _DTYPE_BYTES["float32"]


def _draft_bytes_per_token(speculation: SpeculationConfig, spec: ModelSpec, *, dtype: str) -> int:
    """Bytes that rank 0 keeps of a token for drafters: features each, and entries of a context.

    An estimate, since no checkpoint of a drafter is read here. Prompt lookup keeps no tensors.
    """
    drafters = {speculation.drafter, speculation.colocated_drafter} - {None}
    if speculation.mode == "off" or drafters <= {NGRAM}:
        return 0
    context = 2 * _DRAFT_LAYERS * spec.num_kv_heads * spec.head_dim
    return (len(drafters) * spec.hidden_size + context) * _DTYPE_BYTES[dtype]


def _check_wishes(config: Config, topology: Topology) -> None:
    """The wishes that no machine meets: later versions will, or nobody should."""
    _check_names(config.speculation)
    _check_policy(config.speculation)
    _check_model_names(config.model)
    _check_mode(config.speculation.mode, topology)
    _check_uses(config.speculation, topology)
    parse_bytes(config.server.stored_responses_memory, "server.stored_responses_memory")
    if config.telemetry.log_level not in LOG_LEVELS:
        known = ", ".join(LOG_LEVELS)
        level = config.telemetry.log_level
        raise InvalidField("telemetry.log_level", f"{level!r} is not known ({known})")


def _check_model_names(model: ModelConfig) -> None:
    for key, names in _MODEL_NAMES.items():
        wish: str = getattr(model, key)
        if wish not in names:
            meant = f"; type {_SGLANG[wish]} for it" if wish in _SGLANG else ""
            raise InvalidField(f"model.{key}", f"{wish!r} is not known ({', '.join(names)}){meant}")


def _check_uses(speculation: SpeculationConfig, topology: Topology) -> None:
    """What would be read by nobody is a mistake of whoever set it."""
    if not topology.num_draft_processes and speculation.draft_threads is not None:
        problem = f"is for draft processes, {topology} has none"
        raise InvalidField("speculation.draft_threads", problem)
    if topology.num_draft_processes and speculation.gamma == 1:
        problem = "1: the last token of a block that is pushed is never verified, so 2 is the least"
        raise InvalidField("speculation.gamma", problem)
    misses = speculation.mode in ("async", "auto") and topology.num_draft_processes
    is_local = misses and speculation.miss_policy == "local_draft"
    if is_local and speculation.colocated_drafter is None:
        problem = "local_draft needs a speculation.colocated_drafter"
        raise InvalidField("speculation.miss_policy", problem)


def _check_names(speculation: SpeculationConfig) -> None:
    for key, known in _NAMES.items():
        value: str | None = getattr(speculation, key)
        if value is not None and value not in known:
            hint = f"; it is called {_RENAMED[value]} now" if value in _RENAMED else ""
            problem = f"{value!r} is not known ({', '.join(known)}){hint}"
            raise InvalidField(f"speculation.{key}", problem)


def _check_policy(speculation: SpeculationConfig) -> None:
    """What a policy needs, and what it is not exact for."""
    policy, least = speculation.policy, speculation.min_survival
    if policy == "threshold" and least is None:
        problem = "threshold needs a speculation.min_survival (--min-survival)"
        raise InvalidField("speculation.verify_policy", problem)
    if policy != "threshold" and least is not None:
        problem = f"is the threshold's: leave it out with the policy {policy}"
        raise InvalidField("speculation.min_survival", problem)
    if policy == "global" and speculation.verification != VerificationMethod.COUPLED:
        problem = (
            f"global is not exact for {speculation.verification}: it looks at what was drafted; "
            "use --verification coupled, or price, causal or barrier"
        )
        raise InvalidField("speculation.verify_policy", problem)


def _check_mode(mode: str, topology: Topology) -> None:
    """Draft processes without a mode that uses them would idle, and the other way round."""
    ranks, drafts = topology.num_target_ranks, topology.num_draft_processes
    if mode == "async" and not drafts:
        raise InvalidField(
            "speculation.mode",
            f"async needs a draft process, {topology} has none (use --topology {ranks}+1)",
        )
    if mode in ("off", "sync") and drafts:
        raise InvalidField(
            "topology.topology",
            f"{topology} has draft processes, which speculation.mode {mode} does not use "
            f"(use --speculation async or auto, or --topology {ranks}+0)",
        )


def _check_batch(engine: EngineConfig) -> None:
    rows, tokens = engine.max_batch_rows, engine.max_batch_tokens
    if rows <= tokens:
        return
    if tokens == EngineConfig().max_batch_tokens:  # which nobody has chosen
        problem = f"{rows} is more than engine.max_batch_tokens, {tokens}; raise both"
        raise InvalidField("engine.max_batch_rows", problem)
    problem = f"{tokens} is less than engine.max_batch_rows, {rows}"
    raise InvalidField("engine.max_batch_tokens", problem)


def _resolve_model(model: ModelConfig, device: str, spec: ModelSpec, folder: Path) -> ModelConfig:
    # On a CPU all is computed in float32; what is quantised takes half the memory in float16.
    whole = device == "cpu" and not spec.quantised
    dtype = model.dtype or ("float32" if whole else spec.dtype)
    if dtype not in _DTYPE_BYTES:
        meant = _OTHER_DTYPES.get(dtype.lower().removeprefix("torch."))
        hint = f"; write {meant}" if meant else ""
        known = ", ".join(_DTYPE_BYTES)
        raise InvalidField("model.dtype", f"{dtype!r} is not known ({known}){hint}")
    own_len = spec.max_position_embeddings
    max_model_len = model.max_model_len or own_len
    if max_model_len > own_len:
        raise InvalidField("model.max_model_len", f"{max_model_len} exceeds the model's {own_len}")
    return msgspec.structs.replace(
        model,
        target=str(folder),
        name=model.name or default_name(folder),
        dtype=dtype,
        max_model_len=max_model_len,
    )


def _fit_context(config: Config, model: ModelConfig, num_blocks: int) -> ModelConfig:
    """A context that fits into the pool: a wish that does not is refused, the default shrinks."""
    room, wish = num_blocks * BLOCK_SIZE, config.model.max_model_len
    if wish is not None and wish > room:
        raise Unsupported(
            f"model.max_model_len: {wish} tokens exceed the KV pool, which holds {room} "
            "(engine.kv_memory)"
        )
    return msgspec.structs.replace(model, max_model_len=min(model.max_model_len or room, room))


def _check_memory(weights: int, pools: int, available: int) -> None:
    """In bytes, for all ranks; keeps a slip of the hand from filling the machine.

    `pools` are KV and what grows with it when there is a drafter, whose own weights do not count.
    """
    if weights + pools > available:
        raise Unsupported(
            f"memory: weights of {format_bytes(weights)} and KV pools, with draft contexts, of "
            f"{format_bytes(pools)} exceed the {format_bytes(available)} available "
            "(model.ballast, model.dtype, engine.kv_memory, engine.kv_dtype)"
        )


class _KvPool(msgspec.Struct, frozen=True, kw_only=True):
    """What the size of the KV pool follows from."""

    block_bytes: int  # on the rank that keeps most
    bytes_in_all: int  # of a block on all ranks, and of what a drafter keeps for its tokens
    blocks_per_context: int  # for one context of full length
    available: int  # bytes, for all ranks

    @classmethod
    def of(
        cls, kv_bytes: Sequence[int], draft_bytes: int, context_len: int, hardware: Hardware
    ) -> "_KvPool":
        """`kv_bytes` that a token takes on each rank, `draft_bytes` beside them."""
        return cls(
            block_bytes=BLOCK_SIZE * max(kv_bytes),
            bytes_in_all=BLOCK_SIZE * (sum(kv_bytes) + draft_bytes),
            blocks_per_context=math.ceil(context_len / BLOCK_SIZE),
            available=int(hardware.available_memory * _KV_SHARE_OF_MEMORY),
        )


def _resolve_kv_dtype(engine: EngineConfig, device: str, dtype: str) -> str:
    """What keys and values are kept in where `model.dtype` is `dtype`, resolved."""
    default = dtype if dtype == "bfloat16" else state_dtype(device, dtype)
    wish = engine.kv_dtype or default
    known = [name for name in _DTYPE_BYTES if device == "cuda" or name != "float16"]
    if wish not in known:
        problem = f"{wish!r} is not known on {device} ({', '.join(known)})"
        raise InvalidField("engine.kv_dtype", problem)
    return wish


def _resolve_engine(
    engine: EngineConfig, device: str, kv_dtype: str, obstacle: str | None
) -> EngineConfig:
    """But for the pool. `obstacle`: see `_resolve_cuda_graphs`."""
    deterministic = device == "cpu" if engine.deterministic is None else engine.deterministic
    if deterministic:
        obstacle = obstacle or "engine.deterministic fixes the order of every sum"
    return msgspec.structs.replace(
        engine,
        deterministic=deterministic,
        cuda_graphs=_resolve_cuda_graphs(engine.cuda_graphs, obstacle),
        kv_dtype=kv_dtype,
    )


def _resolve_cuda_graphs(wish: bool | None, obstacle: str | None) -> bool:
    """`obstacle`: why forwards cannot be captured, if they cannot; InvalidField for a wish then."""
    if wish and obstacle is not None:
        raise InvalidField("engine.cuda_graphs", f"cannot be on: {obstacle}")
    return obstacle is None and wish is not False


def _graph_obstacle(topology: Topology, device: str, collectives: str) -> str | None:
    if device != "cuda":
        return f"the device is {device}"
    if topology.num_target_ranks > 1 and collectives != "nccl":
        return f"ranks that share a device meet by {collectives}, through the host"
    return None


def _with_pool(engine: EngineConfig, num_blocks: int | None, pool: _KvPool) -> EngineConfig:
    """What the pool takes, where nobody said what it may."""
    if num_blocks is None or engine.kv_memory is not None:
        return engine
    return msgspec.structs.replace(engine, kv_memory=format_bytes(num_blocks * pool.block_bytes))


def _resolve_num_blocks(engine: EngineConfig, device: str, pool: _KvPool) -> int | None:
    """Blocks of the KV pool; None where only the target node can tell (CUDA without kv_memory)."""
    if engine.kv_memory is not None:
        num_blocks = parse_bytes(engine.kv_memory, "engine.kv_memory") // pool.block_bytes
    elif device == "cuda":
        return None
    else:
        wanted = pool.blocks_per_context * min(engine.max_batch_rows, _FULL_CONTEXTS)
        num_blocks = min(wanted, pool.available // pool.bytes_in_all)
    if num_blocks < 1:
        size = format_bytes(pool.block_bytes)
        raise Unsupported(f"engine.kv_memory: no room for a single block of {size}")
    return num_blocks
