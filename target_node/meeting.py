"""How the ranks of a target meet, and hear that rank 0 leads.

On one machine by files in the folder of the run: no port is needed. On several by node 0's store.
"""

import datetime
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from specserve.processes.process import ChildArguments
from specserve.settings.config import ResolvedConfig
from specserve.transport.rendezvous import open_store

_LEADING = "leading"  # a file of rank 0's, or a key, there once it leads
_LOOK_S = 0.02  # between looks for it
_LOOK_FAR_S = 0.1  # the same, where another machine is asked


def join_group(config: ResolvedConfig, arguments: ChildArguments) -> None:
    """Waits for all ranks. Raises RuntimeError, Unavailable."""
    if arguments.world_size == 1:
        return
    has_nccl = config.collectives == "nccl"
    # gloo takes tensors by way of the host
    backend = "cpu:gloo,cuda:nccl" if has_nccl else "gloo"
    timeout = datetime.timedelta(seconds=config.engine.hang_timeout_s)
    rank, world_size = arguments.rank, arguments.world_size
    if config.hosts:
        store = PrefixStore("ranks", open_store(config))
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    else:
        place = f"file://{arguments.control_dir}/rendezvous"
        dist.init_process_group(
            backend, init_method=place, rank=rank, world_size=world_size, timeout=timeout
        )


def begin_to_lead(config: ResolvedConfig, arguments: ChildArguments) -> None:
    """Rank 0 tells the others."""
    if config.hosts and arguments.world_size > 1:
        open_store(config).set(_LEADING, "1")
    else:
        (arguments.control_dir / _LEADING).touch()


def await_leader(config: ResolvedConfig, folder: Path) -> bool:
    """Until rank 0 has loaded its drafters, which may take longer than any round may.

    Who waits in a collective instead gives up after `engine.hang_timeout_s`. False for a signal
    before that. Once rank 0 leads it says when to stop: a signal here would leave it alone in a
    collective.
    """
    is_told: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: is_told.append(signum))
    is_leading, look_s = _leadership(config, folder)
    while not is_leading():
        if is_told:
            return False
        time.sleep(look_s)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return True


def _leadership(config: ResolvedConfig, folder: Path) -> tuple[Callable[[], bool], float]:
    """Whether rank 0 leads, and how often to ask."""
    if not config.hosts:
        return (folder / _LEADING).exists, _LOOK_S
    store = open_store(config)
    return lambda: bool(store.check([_LEADING])), _LOOK_FAR_S
