"""Which token fills a block's open slots: one that no text of the target's has."""

# pyright: strict

from pathlib import Path

from tokenizers import Tokenizer

from specserve.errors import InvalidField, Unsupported
from specserve.models.config import ModelSpec
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template

FLAG = "--mask-token-id"
_MASKS = ("<|mask|>", "[MASK]", "<mask>")
_SPARE = ("reserved", "unused")  # in the names that publishers give to ids for later use
_NUM_NAMED = 3  # ids that a refusal proposes


def mask_token(model: Path, spec: ModelSpec, asked: int | None) -> int:
    """The id in 0..V-1: `asked`, the tokenizer's mask, an id behind its last one, or a spare one.

    A spare one is special, and neither the chat template nor the model's configuration names it.
    Raises InvalidField naming the flag for an id outside the vocabulary, and where there is none.
    """
    if asked is not None:
        if not 0 <= asked < spec.vocab_size:
            problem = f"the target's vocabulary is 0..{spec.vocab_size - 1}"
            raise InvalidField(FLAG, f"{asked}: {problem}")
        return asked
    try:
        tokenizer = load_tokenizer(model)
    except Unsupported as error:
        raise InvalidField(FLAG, f"needed: the target has no tokenizer here ({error})") from error
    for name in _MASKS:
        if (token_id := tokenizer.token_to_id(name)) is not None:
            return token_id
    if (behind := max(tokenizer.get_vocab().values()) + 1) < spec.vocab_size:
        return behind
    if spare := _spare(tokenizer, model, spec):
        return spare[0]
    rarest = range(spec.vocab_size - 1, max(-1, spec.vocab_size - 1 - _NUM_NAMED), -1)
    proposed = ", ".join(map(str, rarest))
    problem = "the tokenizer names no mask and has no spare special token"
    advice = f"give an id that your text seldom has, as the last merges are: {proposed}"
    raise InvalidField(FLAG, f"needed: {problem}; {advice}")


def _spare(tokenizer: Tokenizer, model: Path, spec: ModelSpec) -> list[int]:
    """Ids of spare special tokens: those called reserved or unused first, the last ids first."""
    template, named = read_chat_template(model)
    used = {*named.values(), template or ""}
    special = {
        token_id: token.content
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special and token_id not in spec.eos_token_ids and token_id < spec.vocab_size
    }
    free = [i for i, name in special.items() if not any(name in text for text in used)]
    return sorted(free, key=lambda i: (any(word in special[i] for word in _SPARE), i), reverse=True)
