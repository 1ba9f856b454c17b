"""What a run begins with: its target, and a folder whose checkpoint nobody else's run continues."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from draft_node.training import checkpoint
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.options import work_folder
from draft_node.training.self_text import weights_digest
from specserve.errors import InvalidField, Unsupported

SETTINGS = "settings.json"


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


def claim(arguments: argparse.Namespace, names: Sequence[str]) -> Path:
    """The run's folder; `names` are the flags that a resumed run has in common with its start.

    Raises InvalidField if the folder holds the checkpoint of another run, unless --restart.
    """
    folder = work_folder(arguments) / "runs" / f"{arguments.kind}-{arguments.out.name}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {name: _plain(getattr(arguments, name)) for name in names}
    settings["target"] = weights_digest(arguments.target)
    saved = folder / checkpoint.FILE_NAME
    if arguments.restart:
        saved.unlink(missing_ok=True)
    if saved.exists():
        _refuse_changes(folder, settings)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    return folder


def _refuse_changes(folder: Path, settings: Mapping[str, object]) -> None:
    begun = json.loads((folder / SETTINGS).read_text())
    for name, value in settings.items():
        if begun.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            problem = f"{folder} holds a run with another value; --restart forgets it"
            raise InvalidField(flag, problem)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
