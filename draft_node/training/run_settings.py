"""What a run was begun with, kept beside its checkpoint: only the same goes on from there."""

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

from draft_node.training.checkpoint import unusable
from draft_node.training.self_text import weights_digest
from draft_node.training.text_source import text_digest
from specserve.errors import InvalidField

FILE_NAME = "settings.json"
# What a resumed run need not have in common with its start: how long, where, and what comes after
# training. Weights, and not paths, are what has to be the same of a target and of --init.
_MAY_CHANGE = (
    "kind", "target", "out", "minutes", "steps", "init", "work", "device", "threads", "compile",
    "restart", "parent_pid", "fuse_with", "processes", "process", "meeting", "words",
    "keep_outputs",
)  # fmt: skip
_TEXT = "text_digest"


def settings_of(arguments: argparse.Namespace) -> dict[str, object]:
    """All that makes the run what it is, as it is read from JSON again.

    Raises InvalidField if --init or --text cannot be read. Chats may grow while they are learned.
    """
    settings = {
        name: _plain(value) for name, value in vars(arguments).items() if name not in _MAY_CHANGE
    }
    settings["target"] = weights_digest(arguments.target)
    settings["init"] = digest_of_initial(arguments)
    settings[_TEXT] = None if arguments.text is None else text_digest(arguments.text)
    return settings


def refuse_changes(folder: Path, settings: Mapping[str, object], out: Path) -> None:
    """Raise InvalidField naming the flag if the run in `folder` was begun with other settings.

    Raises Unsupported if what it was begun with cannot be read.
    """
    begun = _read(folder / FILE_NAME)
    run = f"the run that was begun into {out}, finished or not"
    for name, value in settings.items():
        before = begun.get(name, value)  # an older version's may lack a name
        if name == "text" and isinstance(before, str):
            before = str(Path(before).resolve())  # which it kept as it was typed
        if before == value:
            continue
        if name == _TEXT:
            text = f"{settings['text']}: {run}, was begun with other text in it"
            raise InvalidField("--text", f"{text}; --restart begins anew")
        flag = f"--{name.replace('_', '-')}"
        raise InvalidField(flag, f"{run}, has another value; --restart forgets it")


def store(folder: Path, settings: Mapping[str, object]) -> None:
    """Write them, unless they are there: to a temporary file first, so that none is torn."""
    path = folder / FILE_NAME
    content = (json.dumps(settings, indent=2) + "\n").encode()
    if path.is_file() and path.read_bytes() == content:
        return
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _read(path: Path) -> dict[str, object]:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise unusable(path, error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise unusable(path, f"cannot be read ({error})") from error
    if not isinstance(settings, dict):
        raise unusable(path, "holds no settings")
    return settings


def digest_of_initial(arguments: argparse.Namespace) -> str | None:
    """Of the weights of --init, None without; raises InvalidField if they cannot be read."""
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
    if isinstance(value, tuple):
        return list(value)
    return str(value.resolve()) if isinstance(value, Path) else value
