# pyright: strict
"""What a command remarks on beside what it prints, one line each. Decides nothing."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from specserve.config import Config, ResolvedConfig, SpeculationConfig
from specserve.model.ballast import with_ballast
from specserve.model.config import read_spec
from specserve.sizes import format_count, parse_count
from specserve.topology import parse_topology

if TYPE_CHECKING:
    from specserve.client import Options

_OF_DRAFTING = (
    "drafter", "colocated_drafter", "local_head", "layout", "gamma", "num_kept", "min_survival",
)  # fmt: skip
_OF_DRAFT_PROCESSES = (
    "fan_out", "wave", "fan_out_rule", "miss_policy", "draft_wait_ms", "draft_timeout_s", "link",
)  # fmt: skip


def context_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """That prompts have less room than the model has, if nobody asked for less."""
    if wish.model.max_model_len is not None or config.engine.num_blocks is None:
        return None
    own_len = read_spec(Path(config.model.target or "")).max_position_embeddings
    if config.model.max_model_len == own_len:
        return None
    return (
        f"model.max_model_len is {config.model.max_model_len} and not the model's {own_len}: "
        f"engine.num_blocks {config.engine.num_blocks}, of {config.engine.block_size} tokens each, "
        "hold no more"
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
    if speculation.miss_policy not in ("auto", "draft_now"):
        reasons["draft_wait_ms"] = f"miss_policy {speculation.miss_policy} never waits"
    if speculation.verification != "rejection":
        reasons["saguaro_c"] = f"verification is {speculation.verification}, not rejection"
    if not topology.num_draft_processes:
        reasons |= dict.fromkeys(_OF_DRAFT_PROCESSES, f"{topology} has no draft process")
    if config.speculation.mode == "off":
        reasons |= dict.fromkeys(_OF_DRAFTING, "speculation.mode is off")
    usual = msgspec.structs.asdict(SpeculationConfig())
    asked = [key for key in reasons if getattr(speculation, key) != usual[key]]
    if not asked:
        return None
    return "not used: " + "; ".join(f"speculation.{key} ({reasons[key]})" for key in asked)


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
        f"{format_count(spec.ballast_params)} parameters, which change its cost and not its law"
    )


def unshown_remark(options: "Options") -> str | None:
    """What was asked of a service and is no part of plain text, if anything was."""
    asked = {
        "--logprobs": options.get("logprobs"),
        "--prompt-logprobs": options.get("prompt_logprobs"),
    }
    flags = [flag for flag, value in asked.items() if value is not None]
    return f"not shown: {', '.join(flags)}; --json shows them" if flags else None
