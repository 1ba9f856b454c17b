# pyright: strict
"""From a draft checkpoint's config.json to a `DraftSpec`, by content and never by a folder's name.

A dialect that is not implemented is refused with the reason: a drafter whose layout or features are
read wrongly still drafts, only badly, and nobody would notice.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from specserve.drafters.dialect_deepspec import read_deepspec, read_eagle3, read_gemma4
from specserve.drafters.dialect_dflash import read_dflash
from specserve.drafters.dialect_eagle3 import read_sglang_eagle3, read_speculators_eagle3
from specserve.drafters.dialect_specforge import is_specforge, read_specforge
from specserve.drafters.dialect_speculators import read_speculators
from specserve.drafters.spec import DraftSpec, LanguageModelSpec, LocalHeadSpec
from specserve.errors import Unsupported
from specserve.models.config import (
    ARCHITECTURES,
    CONFIG_FILE,
    ModelSpec,
    Positive,
    convert,
    decoder_spec,
    read_json,
    read_spec,
)

Config = dict[str, Any]
Weight = Annotated[float, msgspec.Meta(ge=0)]

OWN_KEY = "specserve"  # in the config.json of a language model that is a part of its target

_READERS: dict[str, Callable[[Config, Path], DraftSpec]] = {
    "Qwen3DSparkModel": read_deepspec,
    "Gemma4DSparkModel": read_gemma4,
    "Qwen3Eagle3Model": read_eagle3,
    "DFlashDraftModel": read_dflash,
    "DSparkDraftModel": read_specforge,
    "LlamaForCausalLMEagle3": read_sglang_eagle3,
    "Eagle3LlamaForCausalLM": read_sglang_eagle3,  # as vLLM calls it
}

_REFUSED = {
    "DFlash2DraftModel": "DFlash2 (path selector and convolution) is another architecture",
    "DominoDraftModel": "Domino corrects logits with a jointly trained head; not implemented",
}


def read_draft_spec(folder: Path) -> DraftSpec:
    """What the checkpoint in `folder` is. Raises `Unsupported`, naming the reason.

    A GGUF file is a language model.
    """
    return _complete(read_spec(folder)) if folder.is_file() else _read(folder)


def _read(folder: Path) -> DraftSpec:
    path = folder / CONFIG_FILE
    content = read_json(path, Config)
    if content.get("speculators_model_type") == "eagle3":
        return read_speculators_eagle3(content, path)
    if "speculators_model_type" in content:
        return read_speculators(content, path)
    if "dspark_block_size" in content or "dspark_noise_token_id" in content:
        raise Unsupported(f"{path}: a DeepSeek-V4 bundle (mtp tensors, experts) is not supported")
    if "architectures" not in content and "low_rank_dim" in content:
        return _read_local_head(content, path)
    architecture = _architecture(content, path)
    if architecture in _REFUSED:
        raise Unsupported(f"{path}: architectures: {architecture}: {_REFUSED[architecture]}")
    if architecture == "LlamaForCausalLM" and "draft_vocab_size" in content:  # SafeAILab's
        return read_sglang_eagle3(content, path)
    if architecture in ARCHITECTURES:
        return _read_language_model(content, path)
    if architecture not in _READERS:
        known = ", ".join([*_READERS, *ARCHITECTURES, "speculators' dspark, dflash and eagle3"])
        raise Unsupported(f"{path}: architectures: {architecture!r} is not one of {known}")
    if is_specforge(content, architecture):
        return read_specforge(content, path)
    return _READERS[architecture](content, path)


def _architecture(content: Config, path: Path) -> str:
    try:
        return msgspec.convert(content.get("architectures"), list[str])[0]
    except (msgspec.ValidationError, IndexError):
        raise Unsupported(f"{path}: architectures: names no model") from None


class _OursFile(msgspec.Struct):
    """What a model that was cut out of its target leaves to it: under a key of ours."""

    target_embeddings: bool = False
    draft_vocab_size: Positive | None = None


def _complete(decoder: ModelSpec) -> LanguageModelSpec:
    return LanguageModelSpec(decoder, decoder.vocab_size)


def _read_language_model(content: Config, path: Path) -> LanguageModelSpec:
    decoder = decoder_spec(content, path)
    ours = convert(path, content.get(OWN_KEY, {}), _OursFile)
    size, field = ours.draft_vocab_size, f"{path}: {OWN_KEY}.draft_vocab_size"
    if size is None:
        return replace(_complete(decoder), embeddings_stored=not ours.target_embeddings)
    if not ours.target_embeddings:
        raise Unsupported(f"{field}: {size}: without target_embeddings")
    if size > decoder.vocab_size:
        raise Unsupported(f"{field}: {size} of {decoder.vocab_size} tokens")
    return LanguageModelSpec(decoder, size, embeddings_stored=False)


class _LocalHeadFile(msgspec.Struct):
    vocab_size: Positive
    low_rank_dim: Positive
    embed_dim: int = 0
    gru_hidden_dim: int = 0
    lm_head_mode: str = "low_rank"
    rank_activation: str = "identity"
    pure_draft_prefix_len: int = 1
    alpha: Weight | None = None  # these two are ours: published heads leave them to the user
    beta: Weight | None = None


def _read_local_head(content: Config, path: Path) -> LocalHeadSpec:
    file = convert(path, content, _LocalHeadFile)
    problems = {
        "lm_head_mode": file.lm_head_mode in ("low_rank", "target_lm_head"),
        "rank_activation": file.rank_activation in ("silu", "identity"),
        "pure_draft_prefix_len": file.pure_draft_prefix_len == 1,
    }
    for field, supported in problems.items():
        if not supported:
            raise Unsupported(f"{path}: {field}: {getattr(file, field)!r} is not supported")
    return LocalHeadSpec(
        vocab_size=file.vocab_size,
        embed_dim=file.embed_dim,
        hidden_dim=file.gru_hidden_dim,
        rank=file.low_rank_dim,
        silu=file.rank_activation == "silu",
        through_target_head=file.lm_head_mode == "target_lm_head",
        alpha=file.alpha,
        beta=file.beta,
    )
