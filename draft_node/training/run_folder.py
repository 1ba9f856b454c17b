"""What a run begins with: its target, and a folder whose checkpoint nobody else's run continues."""

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from draft_node.training import checkpoint
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.options import work_folder
from draft_node.training.self_text import weights_digest
from specserve.errors import InvalidField, Unsupported
from specserve.output_folder import make_output_folder

SETTINGS = "settings.json"
# What a resumed run need not have in common with its start: how long, where, and what comes after
# training. Weights, and not paths, are what has to be the same of a target and of --init.
_MAY_CHANGE = (
    "kind", "target", "out", "minutes", "steps", "init", "work", "device", "threads", "compile",
    "restart", "parent_pid", "fuse_with",
)  # fmt: skip


def load_target(arguments: argparse.Namespace) -> FrozenTarget:
    """The target of --target on --device; raises InvalidField naming the flag."""
    try:
        torch.empty(0, device=arguments.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).partition("\n")[0]
        raise InvalidField("--device", f"{arguments.device}: {problem}") from error
    try:
        return FrozenTarget(arguments.target, arguments.device)
    except Unsupported as error:
        raise InvalidField("--target", str(error)) from error


def claim(arguments: argparse.Namespace) -> Path:
    """The run's folder, one for every --out, which is made too.

    Raises InvalidField if nothing can be written to --out or --work, and if the folder holds the
    checkpoint of another run, unless --restart.
    """
    # Now: hours of training are a bad time to find out.
    make_output_folder(arguments.out, "--out")
    # Folders of two runs may have the same name.
    place = hashlib.sha256(str(arguments.out.resolve()).encode()).hexdigest()[:8]
    name = f"{arguments.kind}-{arguments.out.name}-{place}"
    folder = work_folder(arguments) / "runs" / name
    make_output_folder(folder, "--work")
    settings = {
        name: _plain(value) for name, value in vars(arguments).items() if name not in _MAY_CHANGE
    }
    settings["target"] = weights_digest(arguments.target)
    settings["init"] = _digest_of_initial(arguments)
    if arguments.restart:
        (folder / checkpoint.FILE_NAME).unlink(missing_ok=True)
    if is_begun(folder):
        _refuse_changes(arguments.out, folder, settings)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    return folder


def is_begun(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    return (folder / checkpoint.FILE_NAME).exists()


def _refuse_changes(out: Path, folder: Path, settings: Mapping[str, object]) -> None:
    begun = json.loads((folder / SETTINGS).read_text())
    for name, value in settings.items():
        if begun.get(name, value) != value:  # an older version's may lack a name
            flag = f"--{name.replace('_', '-')}"
            run = f"the run that was begun into {out}, finished or not, has another value"
            raise InvalidField(flag, f"{run}; --restart forgets it")


def _digest_of_initial(arguments: argparse.Namespace) -> str | None:
    folder: Path | None = getattr(arguments, "init", None)
    if folder is None:
        return None
    if folder.resolve() == arguments.out.resolve():
        return "out"  # its weights change with every export of the run itself
    try:
        return weights_digest(folder)
    except OSError as error:
        raise InvalidField("--init", f"{folder}: {error}") from error


def _plain(value: object) -> object:
    """As it is read from JSON again."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
