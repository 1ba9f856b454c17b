"""Which prompts have greedy text that does not repeat itself, remembered from run to run.

Finding out takes minutes of decoding, and every bench of one model asks the same. One small file a
model and kind of arithmetic, below the user's cache folder; delete it to look again.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from draft_node.training.self_text import weights_digest

log = logging.getLogger(__name__)


class KnownTexts:
    """Of each prompt seen before, whether its greedy text is sound."""

    def __init__(self, path: Path | None = None) -> None:
        """Kept at `path`, or forgotten with the process; a file that is no record is ignored."""
        self._path = path
        self._is_sound: dict[str, bool] = {}
        if path is not None and path.exists():
            try:
                self._is_sound = msgspec.json.decode(path.read_bytes(), type=dict[str, bool])
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s is not used: %s", path, error)

    @classmethod
    def of(cls, target: Path, definition: Sequence[float]) -> "KnownTexts":
        """Those of the model in `target`; `definition`: all numbers that decide what is sound."""
        facts = [weights_digest(target), torch.__version__, torch.backends.cpu.get_cpu_capability()]
        key = _digest([*facts, *definition])
        return cls(_cache_folder() / "greedy-text" / f"{key}.json")

    def get(self, prompt: Sequence[int]) -> bool | None:
        """None: not known."""
        return self._is_sound.get(_digest(prompt))

    def add(self, prompts: Sequence[Sequence[int]], is_sound: Sequence[bool]) -> None:
        """Remember more of them."""
        self._is_sound |= {_digest(p): sound for p, sound in zip(prompts, is_sound, strict=True)}
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(f".{os.getpid()}")
            beside.write_bytes(msgspec.json.encode(self._is_sound))
            beside.replace(self._path)
        except OSError as error:  # a bench can do without
            log.warning("%s is not written: %s", self._path, error)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specserve"


def _digest(values: Sequence[object]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:24]
