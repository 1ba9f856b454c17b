# pyright: strict
"""The few facts of a model folder that planning needs, read from its config.json without torch.

Knows no tensors: shapes are checked by the loader, in the target process.
"""

import json
import re
from pathlib import Path
from typing import Any, cast

import msgspec

import specserve
from specserve.errors import InvalidField, Unsupported

EMBEDDED_TARGET = Path(specserve.__file__).parent / "assets" / "target"
EMBEDDED_NAME = "specserve-embedded"
SUPPORTED_MODEL_TYPES = ("qwen3", "llama")

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Safetensors and text only: nothing that a loader could be talked into executing.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one decoder. Lengths in tokens."""

    folder: str
    name: str
    model_type: str
    num_layers: int
    num_kv_heads: int
    num_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int
    dtype: str  # the file's


def locate_target(target: str | None) -> Path:
    """The folder of the target: embedded (None), local, or fetched from the hub.

    Raises InvalidField when it is none of these.
    """
    if target is None:
        return EMBEDDED_TARGET
    folder = Path(target).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if _HUB_ID.fullmatch(target) and not folder.exists():
        return _fetch(target)
    raise InvalidField("model.target", f"{target!r} is neither a folder nor a hub id (org/name)")


def read_model_facts(folder: Path, *, name: str | None = None) -> ModelFacts:
    """Read config.json. Raises InvalidField for no model, Unsupported for a model not known."""
    document = _read_document(folder)
    model_type = document.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        known = ", ".join(SUPPORTED_MODEL_TYPES)
        raise Unsupported(f"model.target: model_type {model_type!r} is not supported ({known})")
    num_heads = _size(document, "num_attention_heads")
    hidden_size = _size(document, "hidden_size")
    own_name = EMBEDDED_NAME if folder == EMBEDDED_TARGET else folder.name
    return ModelFacts(
        folder=str(folder),
        name=name or own_name,
        model_type=model_type,
        num_layers=_size(document, "num_hidden_layers"),
        num_kv_heads=_size(document, "num_key_value_heads", num_heads),
        num_heads=num_heads,
        head_dim=_size(document, "head_dim", hidden_size // num_heads),
        hidden_size=hidden_size,
        vocab_size=_size(document, "vocab_size"),
        max_model_len=_size(document, "max_position_embeddings"),
        dtype=str(document.get("dtype") or document.get("torch_dtype") or "bfloat16"),
    )


def _read_document(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        document: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidField("model.target", f"{folder} is no model: no config.json") from error
    except (OSError, ValueError) as error:
        raise InvalidField("model.target", f"{path} cannot be read as JSON") from error
    if not isinstance(document, dict):
        raise InvalidField("model.target", f"{path} holds no JSON object")
    return cast("dict[str, Any]", document)


def _size(document: dict[str, Any], key: str, default: int | None = None) -> int:
    value: object = document.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidField("model.target", f"config.json: {key} is {value!r}, not a size")
    return value


def _fetch(hub_id: str) -> Path:
    import huggingface_hub as hub  # imported here: it is slow, and most launches are local
    from huggingface_hub import errors as hub_errors

    try:
        # Its signature is only partly typed upstream.
        folder = hub.snapshot_download(hub_id, allow_patterns=list(_HUB_FILES))  # pyright: ignore
        return Path(folder)
    except (hub_errors.HfHubHTTPError, hub_errors.LocalEntryNotFoundError, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InvalidField("model.target", f"cannot fetch {hub_id!r}: {problem}") from error
