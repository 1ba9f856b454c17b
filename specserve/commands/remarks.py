# pyright: strict
"""What a launch remarks on beside its settings, one line each. Decides nothing."""

from pathlib import Path

from specserve.config import Config, ResolvedConfig
from specserve.model.ballast import with_ballast
from specserve.model.config import read_spec
from specserve.sizes import format_count, parse_count


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
