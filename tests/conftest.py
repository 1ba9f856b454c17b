"""What every test gets: one torch thread, no litter, and real services to talk to."""

import gc
import logging
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from specserve.processes.local_service import local_service
from specserve.settings.kept_files import FOLDER_VARIABLE
from specserve.settings.target_source import EMBEDDED_TARGET
from tests import long_runs
from tests.reliability.scale import is_long

# Inherited by every process a test starts, so that orphans of this run can be told from others.
_MARK = f"SPECSERVE_TEST_RUN={os.getpid()}"
_SHARED_MEMORY_PREFIXES = ("specserve", "torch_")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update([_MARK.split("=")])
    # What one test's service has measured is no business of another's, nor of this machine's user.
    folder = tempfile.TemporaryDirectory(prefix="specserve-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ[FOLDER_VARIABLE] = folder.name
    # What a shell runs in the background does not hear Ctrl-C, nor does anything it starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`long` tests are left to long runs; `gpu` and `multigpu` tests say why they are skipped."""
    _leave_out_long_ones(config, items)
    marked = [item for item in items if {"gpu", "multigpu"} & {m.name for m in item.iter_markers()}]
    if not marked:
        return
    import torch

    num_devices = torch.cuda.device_count()
    for item in marked:
        needed = 2 if item.get_closest_marker("multigpu") else 1
        if num_devices < needed:
            reason = f"needs {needed} CUDA device(s), {num_devices} found"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_make_parametrize_id(val: object) -> str | None:
    """A type of numbers by its name."""
    return str(val).removeprefix("torch.") if type(val).__name__ == "dtype" else None


def _leave_out_long_ones(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever names a test on the command line gets it."""
    node_ids = [item.nodeid for item in items]
    by_name = any("::" in argument for argument in config.args)
    if not by_name:  # so that whole files are here
        empty = long_runs.without_meaning(node_ids, long_runs.lines())
        if empty:
            raise pytest.UsageError("tests/left_to_long_runs.txt names no test:", *empty)
    named = long_runs.named(node_ids, long_runs.lines())
    left_out = [item for item in items if item.nodeid in named]
    for item in left_out:
        item.add_marker("long")
    if not is_long() and not by_name:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in named]


def pytest_collection_finish() -> None:
    """What was imported stays: looking for garbage in it takes a third of a second each time.

    And pytest adds its handlers to each logger that does not propagate, six times a test: torch
    has 55 of those.
    """
    gc.freeze()
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_draws_in_every_run() -> None:
    """A test that draws without a seed of its own still draws the same every time."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed() formats three stack traces


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """What the code under test sets for its own process is no business of the next test's."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _no_litter() -> Iterator[None]:
    """A test that leaves a process or shared memory behind fails."""
    with left_behind():
        yield


@contextmanager
def left_behind() -> Iterator[None]:
    """Fails for what is there in the end and was not before."""
    processes, segments = _processes_of_this_run(), _shared_memory()
    yield
    left_processes = _processes_of_this_run() - processes
    left_segments = _shared_memory() - segments
    assert not left_processes, f"processes left running: {sorted(left_processes)}"
    assert not left_segments, f"shared memory left: {sorted(left_segments)}"


# Those of others: looked at once, for there are many and this runs for every test. Whatever ran
# before this run did is none of its own.
_FOREIGN: set[str] = set(os.listdir("/proc"))


def _processes_of_this_run() -> set[str]:
    """ "pid command" of every live process of a service that carries this run's mark."""
    found = set()
    pids = {name for name in os.listdir("/proc") if name.isdigit()}
    _FOREIGN.intersection_update(pids)  # a pid may be given again
    for pid in pids - _FOREIGN:
        try:
            environ = Path("/proc", pid, "environ").read_bytes().split(b"\0")
            command = (
                Path("/proc", pid, "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
        except OSError:  # ended meanwhile, or another user's
            continue
        if _MARK.encode() not in environ:
            _FOREIGN.add(pid)
        elif any(name in command for name in ("specserve", "target_node", "draft_node")):
            found.add(f"{pid} {command}")
    return found


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(_SHARED_MEMORY_PREFIXES)}


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """The folder of the embedded model."""
    return EMBEDDED_TARGET


@pytest.fixture
def start_service() -> Iterator[Callable[..., str]]:
    """`start_service(*flags)` launches a real service for one test and gives its address."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(_service(flags))


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """The address of one shared service of the tiny model, `1+0`."""
    with _service(()) as address:
        yield address


def _service(flags: tuple[str, ...]) -> AbstractContextManager[str]:
    # Unpinned: test runs share a machine with others, whose pinned processes would collide.
    usual = ["--target", "tiny", "--device", "cpu", "--oversubscribe"]
    return local_service([*usual, *flags])
