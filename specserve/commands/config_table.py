# pyright: strict
"""The resolved configuration as people read it. Decides nothing."""

import msgspec
from rich.console import Console
from rich.table import Table

from specserve.config import Config, Placement, ResolvedConfig

_NONE_MEANS = {  # where a resolved configuration may hold None
    "model.half_weights": "where faster and lossless",
    "model.ballast": "none",
    "engine.num_blocks": "what fits once the weights are loaded",
    "engine.kv_memory": "what is free once the weights are loaded",
    "speculation.drafter": "none",
    "speculation.colocated_drafter": "none",
    "speculation.local_head": "none",
    "speculation.gamma": "the drafter's",
    "speculation.min_survival": "by the times of the rounds so far",
    "speculation.layout": "the drafter's",
    "speculation.saguaro_c": "1",
}


def print_config(config: ResolvedConfig) -> None:
    """Write every section, key and value to stdout, then where each process runs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value"):
        table.add_column(heading)
    for setting, value in config_rows(config).items():
        table.add_row(setting, value)
    # A log file gets whole lines, a terminal gets what fits.
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(table)


def config_rows(config: ResolvedConfig) -> dict[str, str]:
    """Every "section.key" and "place.role.rank" with its value in words."""
    rows: dict[str, str] = {}
    for section in Config.__struct_fields__:
        values: dict[str, object] = msgspec.structs.asdict(getattr(config, section))
        for key, value in values.items():
            dotted = f"{section}.{key}"
            rows[dotted] = _NONE_MEANS[dotted] if value is None else in_words(value)
    for placement in config.placements:
        rows[f"place.{placement.role}.{placement.rank}"] = _place(placement)
    return rows


def in_words(value: object) -> str:
    """One value, as a file or a flag would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(placement: Placement) -> str:
    cores = ",".join(map(str, placement.cores))
    return f"{placement.device}, cores {cores}" if cores else f"{placement.device}, not pinned"
