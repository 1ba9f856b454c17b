# pyright: strict
"""What `specserve top` shows at a time: figures of the latest interval, positions, processes."""

import time
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specserve.api.figures import Counts, Figures, figures_between
from specserve.api.info import ModelInfo, ServerInfo, ServerLoad, SpecConfig, SpecStats
from specserve.client import Client
from specserve.settings.config import DAY_S

_COLOURS = {"ready": "green", "degraded": "yellow", "loading": "yellow", "draining": "yellow"}
_NOTHING = "-"
_POSITIONS = 12  # that a line has room for
_LATE_S = 1.0  # a report of the target that is older: it is held up


@dataclass(frozen=True)
class Snapshot:
    """All that a service says of itself, at one time."""

    address: str
    server: ServerInfo
    model: ModelInfo
    load: ServerLoad
    config: SpecConfig
    stats: SpecStats

    @classmethod
    def of(cls, client: Client, address: str) -> "Snapshot":
        """Raises SpecserveError."""
        return cls(
            address=address,
            server=client.server_info(),
            model=client.model_info(),
            load=client.load(),
            config=client.spec_config(),
            stats=client.spec_stats(),
        )

    @property
    def counts(self) -> Counts:
        return Counts.of_service(self.load, self.stats)


def frame(before: Snapshot, now: Snapshot) -> RenderableType:
    """One screen."""
    found = figures_between(before.counts, now.counts)
    parts: list[RenderableType] = [_title(now), _load(now, found)]
    if now.config.mode != "off":
        parts.append(_speculation(now, found))
        if found.accept_rates or now.stats.calibration:
            parts.append(_positions(now, found))
    return Group(*parts, _processes(now, found))


def _title(now: Snapshot) -> Text:
    state = now.server.state
    return Text.assemble(
        (now.model.model, "bold"),
        f" at {now.address}, topology {now.server.topology}, up {_duration(now.server.uptime_s)}: ",
        (state, f"bold {_COLOURS.get(state, 'red')}"),
    )


def _load(now: Snapshot, found: Figures) -> Table:
    load = now.load
    used = load.num_blocks - load.num_free_blocks
    return _grid(
        ("tokens/s out", f"{found.generated_tokens_per_s:.1f}"),
        ("tokens/s in", f"{found.prompt_tokens_per_s:.1f}"),
        ("running", str(load.num_running)),
        ("waiting", str(load.num_waiting)),
        ("KV cache", f"{used / max(1, load.num_blocks):.1%} of {load.num_blocks} blocks"),
        ("prefix hits", _share(found.prefix_hit_rate)),
        ("preemptions", str(load.num_preemptions)),
        ("decode round", f"{1e3 * load.round_s:.2f} ms"),
    )


def _speculation(now: Snapshot, found: Figures) -> Table:
    stats = now.stats
    running = stats.speculation_regime
    mode = running if running == now.config.mode else f"{running} ({now.config.mode})"
    return _grid(
        ("mode", mode),
        ("acceptance length", _number(found.accept_len)),
        ("acceptance rate", _share(found.accept_rate)),
        ("hit rate", _share(found.hit_rate)),
        ("verify length", f"{_number(found.verify_len)} a row"),
        ("verify budget", f"{_number(found.verify_budget)} a round"),
        ("fan-out", _number(found.fan_out)),
        ("wait for drafts", f"{_number(_ms(found.wait_s))} ms a round"),
        ("predicted times", f"{_share(stats.step_time_error)} off"),
        ("misses so far", _words(stats.num_misses)),
    )


def _positions(now: Snapshot, found: Figures) -> Table:
    """The first line is of the interval, the others are since the start."""
    known = [each for each in now.stats.calibration if each.num_judged][:_POSITIONS]
    rates = [f"{rate:.2f}" for rate in found.accept_rates[:_POSITIONS]]
    count = max(len(rates), len(known))
    table = Table(title="by position of a drafted token", title_justify="left", box=None)
    for heading in ("", *map(str, range(count))):
        table.add_column(heading, justify="right" if heading else "left")
    lines = {"accepted, of all blocks now": rates}
    if known:
        lines |= {
            "accepted, of those reached": [f"{each.mean_acceptance:.2f}" for each in known],
            "mean confidence": [f"{each.mean_confidence:.2f}" for each in known],
            "calibration error": [f"{each.error:.2f}" for each in known],
        }
    for name, values in lines.items():
        table.add_row(name, *values, *[_NOTHING] * (count - len(values)))
    return table


def _processes(now: Snapshot, found: Figures) -> Table:
    table = Table(title="processes", title_justify="left", box=None)
    table.add_column("")
    table.add_column("state")
    table.add_column("bytes/s to it", justify="right")
    table.add_column("from it", justify="right")
    table.add_row("api", _coloured(now.server.state), "", "")
    for rank in range(now.model.tensor_parallel):
        table.add_row(f"target {rank}", _target_state(now), "", "")
    for index, draft in enumerate(now.stats.drafts):
        state = Text(draft.state, "green" if draft.is_attached else "red")
        sent, received = found.sent_per_s[index], found.received_per_s[index]
        table.add_row(f"draft {index}", state, _bytes(sent), _bytes(received))
    return table


def _target_state(now: Snapshot) -> Text:
    """Of every rank: if one ends, all do."""
    if now.load.report_age_s > _LATE_S:
        return Text(f"silent for {now.load.report_age_s:.1f} s", "yellow")
    return Text("busy" if now.load.num_running else "idle", "green")


def _coloured(state: str) -> Text:
    return Text(state, _COLOURS.get(state, "red"))


def _grid(*cells: tuple[str, str]) -> Table:
    """Names and figures in four columns, row by row."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    pairs = list(zip(cells[::2], cells[1::2], strict=True))
    for (name, value), (other, other_value) in pairs:
        table.add_row(Text(name, "dim"), value, Text(other, "dim"), other_value)
    return table


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.1%}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _words(counts: dict[str, int]) -> str:
    found = [f"{name} {count}" for name, count in sorted(counts.items())]
    return ", ".join(found) or _NOTHING


def _bytes(count: float) -> str:
    for unit in ("", "k", "M"):
        if count < 1000:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:.3g} G"


def _duration(seconds: float) -> str:
    if seconds >= DAY_S:
        return f"{seconds / DAY_S:.1f} days"
    return time.strftime("%H:%M:%S", time.gmtime(seconds))
