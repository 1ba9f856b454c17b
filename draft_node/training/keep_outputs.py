"""Computing what `KeptOutputs` reads: once for a target, a folder of chats and a set of layers.

Requests are read alone and from their beginnings, several of about one length at once; those that
are longer than the target's context in pieces. What was read stays when a run is stopped, and the
next one goes on behind it.
"""

import argparse
import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draft_node.training.batches import tokens_of
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.kept_outputs import (
    HIDDEN,
    LOG_SUMS,
    KeptOutputs,
    array_path,
    form_of,
    is_there,
    layer_name,
)
from draft_node.training.options import work_folder
from draft_node.training.progress import shown
from draft_node.training.ranks import Ranks
from draft_node.training.self_text import weights_digest
from draft_node.training.text_source import TextSource
from specserve.errors import InvalidField
from specserve.processes.run_dir import make_output_folder

log = logging.getLogger(__name__)

_FLAG = "--keep-outputs"
_AT_ONCE = 4096  # tokens, those of padding included
_SAVE_EVERY = 16  # batches
_BEGUN = "begun.json"


def keep_outputs(
    arguments: argparse.Namespace,
    target: FrozenTarget,
    source: TextSource,
    layers: Sequence[int],
    ranks: Ranks,
) -> None:
    """Have `target` answer from what is kept, if --keep-outputs asks for it.

    The first of several processes computes what is missing. Raises InvalidField without --data, and
    where the disk is too small.
    """
    if not _is_asked(arguments):
        return
    (stream,), (starts,) = source.training.values(), source.starts.values()
    digest = hashlib.sha256(weights_digest(arguments.target).encode() + stream.tobytes())
    folder = work_folder(arguments) / "outputs" / digest.hexdigest()[:16]
    if ranks.is_first:
        make_output_folder(folder, "--work")
        with _alone(folder):
            compute(folder, target, stream, layers)
    ranks.wait()
    target.kept = KeptOutputs(folder, stream, starts, layers)


def refuse_other_text(arguments: argparse.Namespace) -> None:
    """Raise InvalidField if outputs are to be kept of text whose rows never come again, or for a
    language model that learns nothing of them."""
    if _is_asked(arguments) and arguments.data is None:
        raise InvalidField(_FLAG, "is for chats, whose rows come again; give --data")
    if _is_asked(arguments) and not getattr(arguments, "distill", 1):
        problem = "a language model learns from them with --distill alone; give that too"
        raise InvalidField(_FLAG, problem)


def _is_asked(arguments: argparse.Namespace) -> bool:
    """Local heads read nothing of the target, and have no such flag."""
    return getattr(arguments, "keep_outputs", False)


def compute(folder: Path, target: FrozenTarget, stream: np.ndarray, layers: Sequence[int]) -> None:
    """Make the arrays of `folder` that are not there yet. Raises InvalidField: no room for them."""
    wanted = {layer_name(layer): layer for layer in layers}
    form = (len(stream), target.spec.hidden_size)
    missing = [n for n in (HIDDEN, LOG_SUMS, *wanted) if not is_there(folder, n, *form)]
    if not missing:
        return
    unfinished = folder / "unfinished"
    try:
        arrays = _opened(unfinished, missing, *form)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)  # the disk is full
        problem = f"{unfinished}: {error.strerror}; --work names another folder"
        raise InvalidField(_FLAG, problem) from error
    done = _done(unfinished)
    batches = _batches(stream, target.spec.max_position_embeddings)
    total = sum(len(batch) for batch in batches)
    with shown("reading the target's outputs", total) as advance:
        for number, batch in enumerate(batches):
            if number >= done:
                _read(target, stream, batch, {n: wanted[n] for n in missing if n in wanted}, arrays)
                if number % _SAVE_EVERY == _SAVE_EVERY - 1:
                    _save(unfinished, arrays, missing, number + 1)
            advance(len(batch))
    for array in arrays.values():
        array.flush()
    for name in missing:
        os.replace(array_path(unfinished, name), array_path(folder, name))
    shutil.rmtree(unfinished)


def requests_of(stream: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """First token and end of every request: an answer is learned, and what is asked is not.

    Those of more than `longest` tokens are several.
    """
    learned = stream >= 0
    starts = [0, *(np.flatnonzero(learned[:-1] & ~learned[1:]) + 1).tolist()]
    ends = [*starts[1:], len(stream)]
    return [
        (place, min(place + longest, end))
        for start, end in zip(starts, ends, strict=True)
        for place in range(start, end, longest)
    ]


def _batches(stream: np.ndarray, longest: int) -> list[list[tuple[int, int]]]:
    """All requests, the longest first, as many at once as may be."""
    batches = list[list[tuple[int, int]]]()
    for request in sorted(requests_of(stream, longest), key=lambda r: (r[0] - r[1], r[0])):
        width = batches[-1][0][1] - batches[-1][0][0] if batches else 0
        if not batches or (len(batches[-1]) + 1) * width > _AT_ONCE:
            batches.append([])
        batches[-1].append(request)
    return batches


@torch.no_grad()
def _read(
    target: FrozenTarget,
    stream: np.ndarray,
    requests: Sequence[tuple[int, int]],
    layers: Mapping[str, int],
    arrays: Mapping[str, np.ndarray],
) -> None:
    longest = max(end - start for start, end in requests)
    rows = torch.zeros(len(requests), longest, dtype=torch.int64)  # padded behind: never looked at
    for row, (start, end) in zip(rows, requests, strict=True):
        row[: end - start] = tokens_of(torch.from_numpy(stream[start:end].astype(np.int64)))
    outputs = target.computed(rows.to(target.device), tuple(layers.values()))
    found: dict[str, Tensor] = {HIDDEN: outputs.hidden.to(torch.float16)}
    if LOG_SUMS in arrays:
        found[LOG_SUMS] = target.log_sums(outputs.hidden)
    if outputs.features is not None:
        parts = outputs.features.to(torch.bfloat16).view(torch.uint16).chunk(len(layers), dim=-1)
        found |= dict(zip(layers, parts, strict=True))
    for name, array in arrays.items():
        values = found[name].cpu().numpy()
        for row, (start, end) in zip(values, requests, strict=True):
            array[start:end] = row[: end - start]


def _opened(
    folder: Path, names: Sequence[str], num_tokens: int, width: int
) -> dict[str, np.memmap]:
    """Arrays to write, as they were left or new. Raises OSError or InvalidField: no room."""
    forms = {name: form_of(name, num_tokens, width) for name in names}
    is_left = all(is_there(folder, name, num_tokens, width) for name in names)
    is_new = not is_left or _begun(folder).get("names") != list(names)
    if is_new:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        needed = sum(math.prod(shape) * kind.itemsize for shape, kind in forms.values())
        if (free := shutil.disk_usage(folder).free) < needed:
            sizes = f"{needed / 1e9:.1f} GB are needed in {folder}, {free / 1e9:.1f} GB are free"
            raise InvalidField(_FLAG, f"{sizes}; --work names another folder")
    arrays = dict[str, np.memmap]()
    for name, (shape, kind) in forms.items():
        path, mode = array_path(folder, name), "w+" if is_new else "r+"
        arrays[name] = np.lib.format.open_memmap(path, mode=mode, dtype=kind, shape=shape)
        if is_new:
            _occupy(path)
    return arrays


def _occupy(path: Path) -> None:
    """Have all of the file on disk now: a disk that is full when pages of it are written back ends
    the process by a signal, without a word. Raises OSError."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _begun(folder: Path) -> dict[str, object]:
    try:
        return json.loads((folder / _BEGUN).read_bytes())
    except (OSError, ValueError):
        return {}


def _done(folder: Path) -> int:
    """Batches that are on disk."""
    done = _begun(folder).get("batches", 0)
    return done if isinstance(done, int) else 0


def _save(folder: Path, arrays: Mapping[str, np.memmap], names: Sequence[str], done: int) -> None:
    for array in arrays.values():
        array.flush()
    temporary = folder / f"{_BEGUN}.tmp"
    temporary.write_text(json.dumps({"names": list(names), "batches": done}))
    os.replace(temporary, folder / _BEGUN)


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Wait for another run that computes the same."""
    with (folder / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another run reads the target's outputs of the same chats: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some network's file systems have no locks
            log.warning("%s cannot be locked (%s): start no second run", folder, error.strerror)
        yield
