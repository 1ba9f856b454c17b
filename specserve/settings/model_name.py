# pyright: strict
"""What clients see a model called unless the user chose a name (`--name`).

A folder's own name, if somebody gave it one. Many folders are called by what they hold or by a
hash; of those config.json may still know which model it was made for, as transformers writes it.
GGUF files say it in their metadata.
"""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, cast

from specserve.errors import Unsupported
from specserve.models.gguf.container import GgufFile
from specserve.models.model_files import read_regular
from specserve.settings.target_source import default_name

_MAX_LEN = 200  # of a name; longer ones were meant for something else
_WORDS = (
    "hf|huggingface|(ggml[-_])?models?|llm|target|base|main|weights|safetensors|checkpoints?|ckpt|final|last|"
    "latest|best|outputs?|out|export|exported|merged|original|snapshot|tmp|temp|data|"
    "float16|bfloat16|float32|fp16|bf16|fp32"
)
_NUMBERED = r"(checkpoint|ckpt|step|epoch|iter|global_step|v|run)?[-_.]?\d+"
_HASH = r"[0-9a-f]{12,64}"  # of a commit
_GENERIC = re.compile(f"({_WORDS})|{_NUMBERED}|{_HASH}|tmp\\w{{8}}|\\W*", re.IGNORECASE)
_SNAPSHOT = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)/snapshots/[^/]+/*$")
_LOCAL = re.compile(r"^[/.~\\]|^\w:|\\|/.*/")  # a path, and no hub id


def model_name(model: Path) -> str:
    """The name of the model at a path. Reads at most its description, and raises nothing."""
    if (snapshot := _SNAPSHOT.search(model.as_posix())) is not None:
        return _of_snapshot(snapshot)
    usual = default_name(model)
    if not _GENERIC.fullmatch(usual):
        return usual
    if model.is_file():
        return _fit(_of_gguf(model)) or usual
    return name_of_path(_recorded(model / "config.json")) or usual


def name_of_path(text: str) -> str:
    """The name that a path or a hub id holds; empty if that could be any model's."""
    if (snapshot := _SNAPSHOT.search(text)) is not None:
        return _of_snapshot(snapshot)
    if not _LOCAL.search(text) and "/" in text:
        return text
    name = PurePosixPath(text.replace("\\", "/")).name
    return "" if _GENERIC.fullmatch(name) else name


def _of_snapshot(snapshot: re.Match[str]) -> str:
    """As the hub calls it whose cache this is the folder of."""
    return f"{snapshot[1]}/{snapshot[2]}"


def _recorded(path: Path) -> str:
    """`_name_or_path` of a config.json; empty where it has none that is fit to be a name."""
    try:
        content: Any = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):  # whoever reads the model says what is wrong
        return ""
    fields = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    return _fit(fields.get("_name_or_path"))


def _of_gguf(path: Path) -> object:
    try:
        with GgufFile(path) as file:
            return file.metadata.get("general.name")
    except Unsupported:  # whoever reads the model says what is wrong
        return ""


def _fit(name: object) -> str:
    """`name` if it is fit to be one."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > _MAX_LEN:
        return ""
    return name.strip()
