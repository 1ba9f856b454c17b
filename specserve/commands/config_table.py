# pyright: strict
"""The resolved configuration as people read it. Decides nothing."""

import msgspec
from rich.console import Console
from rich.table import Table

from specserve.config import Config, Placement, ResolvedConfig


def print_config(config: ResolvedConfig) -> None:
    """Write every section, key and value to stdout, then where each process runs."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("setting", "value"):
        table.add_column(heading)
    for section in Config.__struct_fields__:
        values: dict[str, object] = msgspec.structs.asdict(getattr(config, section))
        for key, value in values.items():
            table.add_row(f"{section}.{key}", _text(value))
    for placement in config.placements:
        table.add_row(f"place.{placement.role}.{placement.rank}", _place(placement))
    # A log file gets whole lines, a terminal gets what fits.
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)


def _text(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(placement: Placement) -> str:
    cores = ",".join(map(str, placement.cores))
    return f"{placement.device}, cores {cores}" if cores else f"{placement.device}, not pinned"
