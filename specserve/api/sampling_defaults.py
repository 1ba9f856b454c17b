# pyright: strict
"""What a request's unset sampling parameters are: as whoever published the model wishes, or plain.

A folder says so in transformers' generation_config.json, of which as in vLLM and SGLang `do_sample`
is not read; a GGUF file in its metadata.
"""

from pathlib import Path

import msgspec

from specserve.errors import InvalidField, Unsupported
from specserve.models.config import GENERATION_CONFIG_FILE, convert, read_json
from specserve.models.gguf.container import GgufFile
from specserve.types import SamplingParams
from specserve.validation import Limits, validate_sampling

_GGUF_KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_NO_LIMITS = Limits(vocab_size=1, max_model_len=2**31, max_samples=1, max_logprobs=0)


class _File(msgspec.Struct):
    """The fields that are read; null means unset."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | float | None = None  # some write 50.0; -1 is an old spelling of "off"
    min_p: float | None = None
    repetition_penalty: float | None = None


def _of_gguf(path: Path) -> _File:
    with GgufFile(path) as opened:
        keys = {field: f"general.sampling.{key}" for field, key in _GGUF_KEYS.items()}
        values = {field: opened.metadata.get(key) for field, key in keys.items()}
    for field, key in keys.items():
        if not isinstance(values[field], float | int | None):
            raise Unsupported(f"{path}: {key}: {str(values[field])[:80]!r} is no number")
    return convert(path, values, _File)


def _top_k(value: float | None) -> dict[str, int]:
    if value is None:
        return {}
    if not float(value).is_integer():  # nor infinity, which JSON of Python's may hold
        raise InvalidField("top_k", f"{value} is no whole number")
    return {"top_k": 0 if value == -1 else int(value)}


def sampling_defaults(model: Path, wish: str) -> SamplingParams:
    """Of the model in a folder or file; `wish` is "auto", or "none" for what changes no
    distribution.

    Raises `Unsupported` for a file that asks for what no request may.
    """
    path = model if model.is_file() else model / GENERATION_CONFIG_FILE
    if wish == "none" or not path.is_file():
        return SamplingParams()
    try:
        file = _of_gguf(path) if model.is_file() else read_json(path, _File)
        given = {name: v for name, v in msgspec.to_builtins(file).items() if v is not None}
        defaults = msgspec.convert(given | _top_k(file.top_k), SamplingParams)
        validate_sampling(defaults, _NO_LIMITS)
    except (InvalidField, Unsupported) as error:
        where = "" if isinstance(error, Unsupported) else f"{path}: "
        hint = "--generation-config none ignores it"
        raise Unsupported(f"model.target: {where}{error} ({hint})") from error
    return defaults
