"""Which prompts have greedy text that does not repeat itself, remembered from run to run.

Finding out takes minutes of decoding, and every bench of one model asks the same. One small file a
model, program and kind of arithmetic, below the user's cache folder; delete it to look again.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from draft_node.training.self_text import weights_digest
from specserve import __version__

log = logging.getLogger(__name__)


class KnownTexts:
    """Of each prompt seen before, whether its greedy text is sound."""

    def __init__(self, path: Path | None = None) -> None:
        """Kept at `path`, or forgotten with the process; a file that is no record is ignored."""
        self._path = path
        self._is_sound: dict[str, bool] = {} if path is None else _read(path)

    @classmethod
    def of(cls, target: Path, definition: Sequence[float]) -> "KnownTexts":
        """Those of the model in `target`, continued on the CPU by deterministic arithmetic.

        definition: all numbers that decide what is sound.
        """
        folder = _cache_folder()
        if folder is None:
            return cls()
        facts = [
            weights_digest(target), __version__, torch.__version__,
            torch.backends.cpu.get_cpu_capability(), *definition,
        ]  # fmt: skip
        return cls(folder / "greedy-text" / f"{_digest(facts)}.json")

    def get(self, prompt: Sequence[int]) -> bool | None:
        """None: not known."""
        return self._is_sound.get(_digest(prompt))

    def add(self, prompts: Sequence[Sequence[int]], is_sound: Sequence[bool]) -> None:
        """Remember more of them, beside what other runs have written meanwhile."""
        self._is_sound |= {_digest(p): sound for p, sound in zip(prompts, is_sound, strict=True)}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._is_sound = _read(self._path) | self._is_sound
                beside = self._path.with_suffix(".new")
                beside.write_bytes(msgspec.json.encode(self._is_sound))
                beside.replace(self._path)
        except OSError as error:  # a bench can do without
            log.warning("%s is not written: %s", self._path, error)


def _read(path: Path) -> dict[str, bool]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, bool])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s is not used: %s", path, error)
        return {}


def _cache_folder() -> Path | None:
    """None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specserve"
    except RuntimeError:
        return None


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:24]
