# pyright: strict
"""What a request's unset sampling fields are: as whoever published the model wishes, or plain.

The file is transformers' generation_config.json; as in vLLM and SGLang its `do_sample` is not read.
"""

from pathlib import Path

import msgspec

from specserve.errors import InvalidField, Unsupported
from specserve.model.config import read_json
from specserve.types import SamplingParams
from specserve.validation import Limits, validate_sampling

GENERATION_CONFIG = "generation_config.json"
_NO_LIMITS = Limits(vocab_size=1, max_model_len=2**31, max_samples=1, max_logprobs=0)


class _File(msgspec.Struct):
    """The fields that are read; null means unset."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def sampling_defaults(folder: Path, wish: str) -> SamplingParams:
    """Of the model in `folder`; `wish` is "auto", or "none" for fields that change no law.

    Raises `Unsupported` for a file that asks for what no request may.
    """
    path = folder / GENERATION_CONFIG
    if wish == "none" or not path.is_file():
        return SamplingParams()
    file = read_json(path, _File)
    given = {name: value for name, value in msgspec.to_builtins(file).items() if value is not None}
    defaults = SamplingParams(**given)
    try:
        validate_sampling(defaults, _NO_LIMITS)
    except InvalidField as error:
        hint = "--generation-config none ignores it"
        raise Unsupported(f"model.target: {path}: {error} ({hint})") from error
    return defaults
