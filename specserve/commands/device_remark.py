# pyright: strict
"""What `launch` says where the devices that draft were measured to be worth more in the target.

Decides nothing. It goes by what earlier services on this machine measured of both: forwards with
these devices in the target, and without them, and drafts. It speaks only where the target would be
faster even if every block were there in time, and says nothing where anything was not measured.
"""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from specserve.errors import SpecserveError
from specserve.processes.launch import resolve_here
from specserve.settings.config import Config, ResolvedConfig
from specserve.settings.device_use import DeviceUse, gain_of_drafting
from specserve.settings.draft_files import DraftFile
from specserve.settings.hardware import Hardware, probe
from specserve.settings.step_files import StepFile
from specserve.settings.topology import parse_topology

_DRAFTED = 5  # tokens of the block that is compared
_CLEAR = 0.95  # of the target's speed that drafting would have to reach


class _Other(NamedTuple):
    """The same devices, all of them in the target."""

    flags: list[str]
    forward_s: float


def device_remark(wish: Config, config: ResolvedConfig) -> str | None:
    """That the target alone is faster on as many devices, for one request."""
    if not config.num_draft_processes or config.topology.oversubscribe:
        return None  # there is no such device, or it may be anybody's
    hardware = probe()
    forward_s = _forward_s(config, hardware)
    drafts = DraftFile(config, config.speculation, "draft", hardware).peek()
    others = list(_others(wish, config, hardware))
    if forward_s is None or drafts is None or not others:
        return None
    draft_s = drafts.times[0].seconds(_DRAFTED)
    best = min(others, key=lambda other: other.forward_s)
    gain = gain_of_drafting(DeviceUse(draft_s / forward_s, forward_s / best.forward_s))
    if gain > _CLEAR:
        return None
    return (
        f"one request was measured to be served faster by the target alone: its forward takes "
        f"{1000 * best.forward_s:.3g} ms with {shlex.join(best.flags)} and "
        f"{1000 * forward_s:.3g} ms with {config.topology.topology}, and drafting "
        f"{1000 * draft_s:.3g} ms, so that draft processes make {gain:.2f} times the tokens at "
        f"most; to use them all in the target: {shlex.join(best.flags)} --speculation sync"
    )


def _others(wish: Config, config: ResolvedConfig, hardware: Hardware) -> Iterator[_Other]:
    """Those that some service has measured here."""
    own = parse_topology(config.topology.topology)
    num_drafts, threads = own.num_draft_processes, config.topology.threads
    alone = f"{own.num_target_ranks}+0"
    more = f"{own.num_target_ranks + num_drafts}+0"
    known = [(more, threads, ["--topology", more])]
    if config.is_on_cpu and own.num_target_ranks == 1:
        cores = threads + num_drafts * (config.speculation.draft_threads or threads)
        known.append((alone, cores, ["--topology", alone, "--threads", str(cores)]))
    # Forwards are the same whatever drafts, and not every mode is for every topology.
    speculation = msgspec.structs.replace(wish.speculation, mode="auto")
    wish = msgspec.structs.replace(wish, speculation=speculation)
    for topology, count, flags in known:
        wanted = msgspec.structs.replace(wish.topology, topology=topology, threads=count)
        try:
            resolved = resolve_here(msgspec.structs.replace(wish, topology=wanted))
        except SpecserveError:  # heads that do not divide, say: nobody can have measured it
            continue
        forward_s = _forward_s(resolved, hardware)
        if forward_s is not None:
            yield _Other(flags, forward_s)


def _forward_s(config: ResolvedConfig, hardware: Hardware) -> float | None:
    """Of one row with a drafted block, as an earlier service has measured it."""
    record = StepFile(config, hardware).peek()
    if record is None:
        return None
    sizes = [cell.num_tokens for cell in record.cells]
    seconds = [cell.seconds for cell in record.cells]
    return float(np.interp(1 + _DRAFTED, sizes, seconds)) + record.row_s
