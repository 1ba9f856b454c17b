# pyright: strict
"""Every "auto" decided once: `resolve(config, hardware, facts)` is pure and total.

Reads no file and no environment, so a resolution can be tested and replayed for any machine.
"""

import math

import msgspec

from specserve.config import Config, EngineConfig, ModelConfig, Placement, ResolvedConfig
from specserve.errors import InvalidField, Unsupported
from specserve.hardware import Hardware
from specserve.model_facts import ModelFacts
from specserve.sizes import format_bytes, parse_bytes, parse_count
from specserve.topology import Topology, parse_topology, place_on_cpu, place_on_cuda

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_DEVICES = ("cpu", "cuda")
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

_KV_SHARE_OF_MEMORY = 0.25  # of host memory, all ranks together
_FULL_CONTEXTS = 16  # more full-length contexts at once than this rarely pays on CPU


def resolve(config: Config, hardware: Hardware, facts: ModelFacts) -> ResolvedConfig:
    """Decide everything. Raises InvalidField for a wrong value, Unsupported for a wish unmet."""
    topology = parse_topology(config.topology.topology)
    _check_seams(config, topology)
    device = _resolve_device(config, topology, hardware)
    placements, oversubscribed = _place(config, topology, device, hardware)
    model = _resolve_model(config.model, device, facts)
    deterministic = config.engine.deterministic
    engine = msgspec.structs.replace(
        config.engine,
        deterministic=device == "cpu" if deterministic is None else deterministic,
        num_blocks=_resolve_num_blocks(config.engine, model, topology, device, hardware, facts),
    )
    return ResolvedConfig(
        model=model,
        topology=msgspec.structs.replace(
            config.topology, topology=str(topology), device=device, oversubscribe=oversubscribed
        ),
        engine=engine,
        server=config.server,
        speculation=config.speculation,
        placements=placements,
        oversubscribed=oversubscribed,
    )


def kv_bytes_per_token(
    facts: ModelFacts, *, dtype: str, tensor_parallel: int = 1, num_layers: int | None = None
) -> int:
    """Bytes of keys and values that one token takes on one rank, over all layers.

    Ranks share the KV heads; a rank holds at least one. `num_layers` overrides the model's own
    (ballast adds layers).
    """
    heads = max(1, facts.num_kv_heads // tensor_parallel)
    layers = facts.num_layers if num_layers is None else num_layers
    return 2 * layers * heads * facts.head_dim * _DTYPE_BYTES[dtype]


def _check_seams(config: Config, topology: Topology) -> None:
    """The wishes that later versions will meet, refused in this one place."""
    if topology.num_draft_processes > 0:
        raise Unsupported(
            f"topology.topology: {topology} asks for draft processes, which need speculation; "
            f"this version has none (use {topology.num_target_ranks}+0)"
        )
    if config.speculation.mode != "off":
        raise Unsupported(
            f"speculation.mode: {config.speculation.mode!r} is not available in this version (off)"
        )
    if config.server.host not in _LOOPBACK_HOSTS:
        raise Unsupported(
            f"server.host: {config.server.host!r} is not a loopback address; this version has no "
            "authentication (127.0.0.1)"
        )


def _resolve_device(config: Config, topology: Topology, hardware: Hardware) -> str:
    device = config.topology.device
    if device is None:
        needed = topology.num_target_ranks + topology.num_draft_processes
        return "cuda" if len(hardware.cuda_devices) >= needed else "cpu"
    if device not in _DEVICES:
        raise InvalidField("topology.device", f"{device!r} is not known ({', '.join(_DEVICES)})")
    return device


def _place(
    config: Config, topology: Topology, device: str, hardware: Hardware
) -> tuple[tuple[Placement, ...], bool]:
    wish = config.topology
    if device == "cuda":
        return place_on_cuda(topology, len(hardware.cuda_devices), oversubscribe=wish.oversubscribe)
    return place_on_cpu(
        topology,
        hardware.cores,
        threads=wish.threads,
        pin=wish.pin,
        oversubscribe=wish.oversubscribe,
    )


def _resolve_model(model: ModelConfig, device: str, facts: ModelFacts) -> ModelConfig:
    dtype = model.dtype or ("float32" if device == "cpu" else facts.dtype)
    if dtype not in _DTYPE_BYTES:
        raise InvalidField("model.dtype", f"{dtype!r} is not known ({', '.join(_DTYPE_BYTES)})")
    max_model_len = model.max_model_len or facts.max_model_len
    if max_model_len > facts.max_model_len:
        raise InvalidField(
            "model.max_model_len", f"{max_model_len} exceeds the model's {facts.max_model_len}"
        )
    if model.ballast is not None:
        parse_count(model.ballast, "model.ballast")
    return ModelConfig(
        target=facts.folder,
        name=model.name or facts.name,
        dtype=dtype,
        ballast=model.ballast,
        max_model_len=max_model_len,
    )


def _resolve_num_blocks(
    engine: EngineConfig,
    model: ModelConfig,
    topology: Topology,
    device: str,
    hardware: Hardware,
    facts: ModelFacts,
) -> int | None:
    """Blocks of the KV pool; None where only the target node can tell (CUDA without kv_memory)."""
    assert model.max_model_len is not None
    assert model.dtype is not None
    blocks_per_context = math.ceil(model.max_model_len / engine.block_size)
    ranks = topology.num_target_ranks
    block_bytes = engine.block_size * kv_bytes_per_token(
        facts, dtype=model.dtype, tensor_parallel=ranks
    )
    if engine.num_blocks is not None:
        num_blocks = engine.num_blocks
    elif engine.kv_memory is not None:
        num_blocks = parse_bytes(engine.kv_memory, "engine.kv_memory") // block_bytes
    elif device == "cuda":
        return None
    else:
        wanted = blocks_per_context * min(engine.max_batch_rows, _FULL_CONTEXTS)
        share = int(hardware.available_memory * _KV_SHARE_OF_MEMORY) // (block_bytes * ranks)
        num_blocks = min(wanted, share)
    if num_blocks < 1:
        raise Unsupported(
            f"engine.kv_memory: no room for a single block of {format_bytes(block_bytes)}"
        )
    return num_blocks
