# pyright: strict
"""What a command remarks on beside what it prints, one line each. Decides nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from specserve.settings.config import BLOCK_SIZE, Config, ResolvedConfig, SpeculationConfig
from specserve.settings.resolve import cpu_weight_bytes
from specserve.settings.sizes import format_bytes, format_count, parse_count
from specserve.settings.target_source import EMBEDDED_TARGET, FETCH_SMOLLM2
from specserve.settings.topology import parse_topology

if TYPE_CHECKING:
    from specserve.client import Options

_OF_DRAFTING = ("drafter", "colocated_drafter", "local_head", "gamma", "min_survival")
_OF_DRAFT_PROCESSES = ("fan_out", "saguaro_c", "miss_policy", "draft_timeout_s", "link")


def target_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """Which model is served and why, where nobody named one."""
    if wish.model.target is not None:
        return None
    if Path(config.model.target or "") != EMBEDDED_TARGET:
        return f"nobody named a --target: {config.model.name} is installed, so it is served"
    return (
        f"nobody named a --target: the tiny embedded model is served, which babbles, because "
        f"SmolLM2 is not installed ({FETCH_SMOLLM2})"
    )


def dtype_remark(config: ResolvedConfig) -> str | None:
    """What becomes of weights that nothing multiplies as they are stored."""
    model = config.model
    quantised = read_spec(Path(model.target or "")).quantised
    if not quantised:
        return None
    stored = " and ".join((", ".join(quantised[:-1]), quantised[-1])).removeprefix(" and ")
    if model.dtype == "float32":
        return f"weights of {stored} are dequantised to float32, without rounding"
    with_what = "bfloat16" if model.dtype == "bfloat16" else "float32"
    arithmetic = f"; arithmetic is {with_what}" if config.is_on_cpu else ""
    return (
        f"weights of {stored} are dequantised and rounded to {model.dtype}{arithmetic} "
        "(--dtype float32 keeps them whole)"
    )


def memory_remark(config: ResolvedConfig) -> str | None:
    """What the target takes of a CPU's memory, before it is taken."""
    num_blocks, model = config.num_blocks, config.model
    if not config.is_on_cpu or num_blocks is None:
        return None
    spec = read_spec(Path(model.target or ""))
    if model.ballast is not None:
        spec = with_ballast(spec, parse_count(model.ballast, "model.ballast"))
    num_tokens = num_blocks * BLOCK_SIZE
    num_ranks = parse_topology(config.topology.topology).num_target_ranks
    weights = format_bytes(cpu_weight_bytes(spec, model, num_ranks))
    return (
        f"memory: weights {weights}; keys and values up to {config.engine.kv_memory} a rank, for "
        f"{num_tokens} tokens, taken as they are used (--kv-memory)"
    )


def context_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """That prompts have less room than the model has, if nobody asked for less."""
    if wish.model.max_model_len is not None or config.num_blocks is None:
        return None
    own_len = read_spec(Path(config.model.target or "")).max_position_embeddings
    if config.model.max_model_len == own_len:
        return None
    return (
        f"model.max_model_len is {config.model.max_model_len} and not the model's {own_len}: "
        f"engine.kv_memory, {config.engine.kv_memory}, holds no more"
    )


def no_drafter_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """That nothing drafts, where nobody said so."""
    if wish.speculation.mode == config.speculation.mode or config.speculation.mode != "off":
        return None
    return (
        "speculation is off: a target of your own has no drafter until you name one "
        "(--drafter FOLDER, or --drafter ngram for prompt lookup)"
    )


def unused_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """What was asked of speculation that nobody will read as things are, if anything was."""
    speculation, topology = wish.speculation, parse_topology(wish.topology.topology)
    reasons: dict[str, str] = {}
    if not topology.num_draft_processes:
        reasons |= dict.fromkeys(_OF_DRAFT_PROCESSES, f"{topology} has no draft process")
    if speculation.verification != "rejection":
        what = f"speculation.verification is {speculation.verification}, not rejection"
        reasons["saguaro_c"] = what
    if config.speculation.mode == "off":
        reasons |= dict.fromkeys(_OF_DRAFTING, "speculation.mode is off")
    usual = msgspec.structs.asdict(SpeculationConfig())
    asked = [key for key in reasons if getattr(speculation, key) != usual[key]]
    if not asked:
        return None
    return "not used: " + "; ".join(f"speculation.{key} ({reasons[key]})" for key in asked)


def draft_node_remark(config: ResolvedConfig) -> str | None:
    """Where draft processes come from that this launch does not start."""
    address = config.topology.draft_address
    if address is None:
        return None
    return (
        f"drafts come from draft nodes that attach at {address}, once they are started: "
        f"specserve draft --attach-to {address}, with the same --target and --drafter"
    )


def link_remark(config: ResolvedConfig) -> str | None:
    """What carries rounds to draft processes, where there are two ways."""
    if config.is_on_cpu or not config.num_draft_processes:
        return None
    if config.speculation.link == "nccl":
        return (
            "rounds travel to draft processes by NCCL, from GPU memory to GPU memory (--link shm)"
        )
    why = ", because processes share a GPU" if config.oversubscribed else ""
    return f"rounds travel to draft processes through shared memory{why} (--link nccl)"


def ballast_remark(config: ResolvedConfig) -> str | None:
    """That the target is padded, if it is: whoever reads its times should know."""
    if config.model.ballast is None:
        return None
    spec = read_spec(Path(config.model.target or ""))
    spec = with_ballast(spec, parse_count(config.model.ballast, "model.ballast"))
    if not (num_layers := len(spec.ballast_widths)):
        return None
    layers = "1 layer" if num_layers == 1 else f"{num_layers} layers"
    return (
        f"the target carries {layers} of ballast, "
        f"{format_count(spec.ballast_params)} parameters, which change its cost and no probability"
    )


def unshown_remark(options: "Options") -> str | None:
    """What was asked of a service and is no part of plain text, if anything was."""
    asked = {
        "--logprobs": options.get("logprobs"),
        "--prompt-logprobs": options.get("prompt_logprobs"),
    }
    flags = [flag for flag, value in asked.items() if value is not None]
    return f"not shown: {', '.join(flags)}; --json shows them" if flags else None
