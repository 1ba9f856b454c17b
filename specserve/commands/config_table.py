# pyright: strict
"""The resolved configuration as people read it. Decides nothing.

A launch prints what somebody chose and what it decided by itself; all else is as documented, and
sixty lines of that would hide the one that matters.
"""

from collections.abc import Mapping
from typing import cast

import msgspec
from rich.console import Console
from rich.table import Table

from specserve.settings.config import ELSEWHERE, Config, Placement, ResolvedConfig
from specserve.settings.hosts import host_name

_NONE_MEANS = {  # where a resolved configuration may hold None, or a list of nothing
    "model.ballast": "none",
    "topology.mps": "where it starts",
    "topology.rendezvous": "none",
    "topology.spread": "none: one node",
    "server.http_port": "none",
    "server.api_key_file": "none",
    "server.allowed_hosts": "none",
    "server.tls_cert": "none",
    "server.tls_key": "none",
    "engine.kv_memory": "what is free once the weights are loaded",
    "speculation.drafter": "none",
    "topology.draft_address": "none: draft processes are of this launch",
    "speculation.colocated_drafter": "none",
    "speculation.local_head": "none",
    "speculation.gamma": "the drafter's",
    "speculation.min_survival": "by the times of the rounds so far",
    "speculation.saguaro_c": "none: drafts are drawn as the drafter says",
    "telemetry.otlp_endpoint": "none",
}
_WHOLE_LINES = 10_000  # columns, more than any path has
_DECIDED = (  # by `specserve.settings.resolve`, for this machine and model, or worth knowing anyway
    "model.target",
    "model.name",
    "model.dtype",
    "model.max_model_len",
    "topology.topology",
    "topology.device",
    "engine.kv_memory",
    "engine.kv_dtype",
    "engine.deterministic",
    "speculation.mode",
)


def print_config(rows: Mapping[str, str]) -> None:
    """Write settings and their values to stdout; a blank line sets what follows apart."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    for setting, value in rows.items():
        table.add_row(setting, value)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # which folds what is too long for it; a log gets whole lines
        console.width = _WHOLE_LINES
    console.print(table)
    console.print()


def telling_rows(wish: Config, config: ResolvedConfig) -> dict[str, str]:
    """Those of `config_rows` that tell something: what `wish` has set, and what was decided."""
    shown = {*_DECIDED, *_chosen(wish)}
    speculation = config.speculation
    if speculation.mode != "off":
        shown.add("speculation.drafter")
        if speculation.colocated_drafter not in (None, speculation.drafter):
            shown.add("speculation.colocated_drafter")
    rows = config_rows(config)
    return {key: value for key, value in rows.items() if key in shown or key.startswith("place.")}


def _chosen(wish: Config) -> set[str]:
    """Every "section.key" that is not as it would be by itself."""
    chosen: set[str] = set()
    for section in Config.__struct_fields__:
        usual = msgspec.structs.asdict(getattr(Config(), section))
        values = msgspec.structs.asdict(getattr(wish, section))
        chosen.update(f"{section}.{key}" for key in usual if values[key] != usual[key])
    return chosen


def config_rows(config: ResolvedConfig) -> dict[str, str]:
    """Every "section.key" and "place.role.rank" with its value in words."""
    rows: dict[str, str] = {}
    for section in Config.__struct_fields__:
        values: dict[str, object] = msgspec.structs.asdict(getattr(config, section))
        for key, value in values.items():
            dotted = f"{section}.{key}"
            rows[dotted] = _NONE_MEANS[dotted] if value in (None, ()) else in_words(value)
    for placement in config.placements:
        place = _place(placement)
        if placement.host == ELSEWHERE:
            place = f"elsewhere, attaches at {config.topology.draft_address}"
        elif config.hosts:
            place = f"{host_name(placement.host, config.hosts[placement.host])}: {place}"
        rows[f"place.{placement.role}.{placement.rank}"] = place
    return rows


def in_words(value: object) -> str:
    """One value, as a file or a flag would have it."""
    if isinstance(value, tuple):
        return ",".join(cast("tuple[str, ...]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _place(placement: Placement) -> str:
    cores = ",".join(map(str, placement.cores))
    return f"{placement.device}, cores {cores}" if cores else f"{placement.device}, not pinned"
