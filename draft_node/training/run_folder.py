"""What a run begins with: its target, and a folder whose checkpoint nobody else's run continues."""

import argparse
import fcntl
import hashlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from draft_node.training import checkpoint, run_settings
from draft_node.training.device import fast_bfloat16, is_cpu
from draft_node.training.frozen_target import FrozenTarget, TargetFiles
from draft_node.training.options import work_folder
from draft_node.training.ranks import Ranks
from specserve.errors import InvalidField, Unsupported
from specserve.processes.run_dir import make_output_folder

log = logging.getLogger(__name__)

LOCK = "lock"
_REPLACED = ("model.safetensors", "config.json", "README.md")  # among what is exported


def _fast(device: str) -> torch.dtype | None:
    """A CPU without products of 16 bits may take a hundred times as long with them."""
    return torch.bfloat16 if is_cpu(device) and fast_bfloat16(device) else None


def read_target(arguments: argparse.Namespace) -> TargetFiles:
    """What is known of --target before its weights are read; raises InvalidField for it and for
    --device."""
    try:
        torch.empty(0, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).partition("\n")[0]
        raise InvalidField("--device", f"{arguments.device}: {problem}") from error
    try:
        return TargetFiles(arguments.target)
    except Unsupported as error:
        raise InvalidField("--target", str(error)) from error


def load_target(arguments: argparse.Namespace) -> FrozenTarget:
    """The target of --target on --device; raises InvalidField naming the flag."""
    try:
        return FrozenTarget(arguments.target, arguments.device, _fast(arguments.device))
    except Unsupported as error:
        raise InvalidField("--target", str(error)) from error


@contextmanager
def claim(arguments: argparse.Namespace, ranks: Ranks | None = None) -> Generator[Path]:
    """The run's folder, one for every --out, which is made too; nobody else's until the end.

    Of several processes (`ranks`) the first one has it, and the others may use it.

    Raises InvalidField if nothing can be written to --out or --work, while another run has the
    folder, and if the folder holds the checkpoint of another run, unless --restart; Unsupported if
    it cannot be told whose it is.
    """
    if ranks is not None and not ranks.is_first:
        ranks.wait()
        yield run_folder(arguments)
        return
    # Now: hours of training are a bad time to find out.
    make_output_folder(arguments.out, "--out")
    folder = run_folder(arguments)
    make_output_folder(folder, "--work")
    with locked(folder, "--out", arguments.out):
        settings = run_settings.settings_of(arguments)
        if arguments.restart:
            (folder / checkpoint.FILE_NAME).unlink(missing_ok=True)
        if is_begun(folder):
            run_settings.refuse_changes(folder, settings, arguments.out)
        else:
            _refuse_others_files(arguments)
        run_settings.store(folder, settings)
        if ranks is not None:
            ranks.wait()
        yield folder


def _refuse_others_files(arguments: argparse.Namespace) -> None:
    """Raise InvalidField if --out has files that the run would replace, and did not write.

    --restart, and --init with the same folder, say that they may be lost; a target's never.
    """
    out: Path = arguments.out.resolve()
    if out == arguments.target.resolve():
        raise InvalidField("--out", f"{arguments.out} is the target's folder; choose another")
    initial: Path | None = getattr(arguments, "init", None)
    if arguments.restart or (initial is not None and initial.resolve() == out):
        return
    if found := [name for name in _REPLACED if (out / name).exists()]:
        problem = f"{arguments.out} has a {found[0]} that is not of this run"
        raise InvalidField("--out", f"{problem}; choose another folder, or --restart replaces it")


def run_folder(arguments: argparse.Namespace) -> Path:
    """Of --out; those of two runs may have the same name."""
    place = hashlib.sha256(str(arguments.out.resolve()).encode()).hexdigest()[:8]
    name = f"{arguments.kind}-{arguments.out.name}-{place}"
    return work_folder(arguments) / "runs" / name


def is_begun(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    return (folder / checkpoint.FILE_NAME).exists()


@contextmanager
def locked(folder: Path, flag: str, given: Path) -> Generator[None]:
    """Have the folder alone. The kernel lets go of it when the process ends, however it does.

    Raises InvalidField for the flag that was `given` while another run has it.
    """
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            problem = "another run into it is under way; wait for its end, or stop it"
            raise InvalidField(flag, f"{given}: {problem} ({folder / LOCK} is locked)") from error
        except OSError as error:  # some network's file systems have no locks
            log.warning("%s cannot be locked (%s): start no second run", folder, error.strerror)
        yield
