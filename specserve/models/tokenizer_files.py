"""Reading a model's tokenizer and chat template, from its folder or its GGUF file.

Only byte-level tokenizers are served. Renders nothing and executes nothing.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specserve.errors import Unsupported
from specserve.models.config import read_json
from specserve.models.gguf.container import GgufFile
from specserve.models.gguf.tokenizer import gguf_chat_template, gguf_tokenizer
from specserve.models.known_tokens import TOKENIZER_FILE
from specserve.models.model_files import read_regular


def load_tokenizer(model: Path) -> Tokenizer:
    """Of a folder or a GGUF file; raises Unsupported if it is no byte-level tokenizer."""
    if model.is_file():
        with GgufFile(model) as file:
            return gguf_tokenizer(file)
    path = model / TOKENIZER_FILE
    try:
        description: dict[str, Any] = json.loads(read_regular(path))
        tokenizer = Tokenizer.from_file(str(path))
    except OSError as error:
        raise Unsupported(f"model.target: cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise Unsupported(f"model.target: {path} is no tokenizer: {error}") from error
    if not _is_byte_level(description.get("decoder")):
        raise Unsupported(f"model.target: {path} is not byte-level, the only kind served")
    return tokenizer


def read_chat_template(model: Path) -> tuple[str | None, dict[str, str]]:
    """The template's source, None without one, and the texts of tokens it may name."""
    if model.is_file():
        with GgufFile(model) as file:
            return gguf_chat_template(file)
    config_path, template_path = model / "tokenizer_config.json", model / "chat_template.jinja"
    config = read_json(config_path, dict[str, Any]) if config_path.is_file() else {}
    if template_path.is_file():
        source = _read_text(template_path)
    else:
        source = _default_template(config.get("chat_template"))
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return source, {name: _token_text(config.get(name)) for name in names}


def _is_byte_level(decoder: Any) -> bool:  # noqa: ANN401 - parsed JSON
    match decoder:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "Sequence", "decoders": [only]}:
            return _is_byte_level(only)
        case _:
            return False


def _default_template(template: Any) -> str | None:  # noqa: ANN401 - parsed JSON
    """A string, or a list of named ones of which "default" counts."""
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict))
        template = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Unsupported(f"model.target: cannot read {path}: {error}") from error


def _token_text(token: Any) -> str:  # noqa: ANN401 - parsed JSON: a string or an object
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
