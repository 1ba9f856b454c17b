# pyright: strict
"""Log probabilities as completions have them: tokens by name, and where each begins in the text.

A name is the text of a token, or `bytes:\\xf0\\x9f` as OpenAI writes it where that is no whole
characters: shown as replacement characters, different tokens would have one name, and the
probability of one would be told of another. What is told of prompts is in vLLM's form.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specserve.api.detokenizer import Detokenizer
from specserve.api.http.answers import Json
from specserve.api.tokenizer import TextTokenizer
from specserve.types import Logprobs


class Echo(NamedTuple):
    """A prompt that its answer repeats. Without log probabilities its text is all that counts."""

    text: str
    first_token: str = ""  # its name; it has no probability
    offsets: Sequence[int] = ()  # characters before each of its tokens


class TextOffsets:
    """Characters of a choice's text before each of its tokens, however rounds cut them."""

    def __init__(self, detokenizer: Detokenizer, start: int) -> None:
        """`start`: characters before the first token."""
        self._detokenizer, self._place = detokenizer, start

    def of(self, positions: Sequence[Logprobs]) -> list[int]:
        """Of the next tokens. One within a character begins where that character does."""
        found: list[int] = []
        for position in positions:
            piece = self._detokenizer.push([position.token_id])
            found.append(self._place + _num_before(_name(position.token_bytes), piece))
            self._place += len(piece)
        return found


def echo_of(text: str, token_ids: Sequence[int], tokenizer: TextTokenizer) -> Echo:
    """Of a prompt, which may have no tokens: then nobody serves it.

    A special token is in a text where the client has written it, and in none that was decoded.
    """
    detokenizer, place = tokenizer.detokenizer(), 0
    offsets: list[int] = []
    for token_id in token_ids:
        piece, name = detokenizer.push([token_id]), _name(tokenizer.shown(token_id))
        if not piece and text.startswith(name, place):
            piece = name
        offsets.append(place + _num_before(name, piece))
        place += len(piece)
    return Echo(text, _name(tokenizer.shown(token_ids[0])) if token_ids else "", offsets)


def completion_logprobs(
    positions: Sequence[Logprobs], offsets: Sequence[int], first_token: str | None = None
) -> Json:
    """`logprobs` of a completion's choice.

    `first_token`: the name of a prompt's first token, which comes before `positions`, and whose
    offset is among `offsets`.
    """
    tokens: list[str] = [_name(each.token_bytes) for each in positions]
    logprobs: list[float | None] = [each.logprob for each in positions]
    tops: list[Json | None] = [_top(each) for each in positions]
    if first_token is not None:
        tokens, logprobs, tops = [first_token, *tokens], [None, *logprobs], [None, *tops]
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def prompt_logprobs(positions: Sequence[Logprobs]) -> list[Json | None]:
    """By token id, of every token of a prompt; its first has none."""
    return [None, *map(_by_token_id, positions)]


def _name(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _num_before(name: str, piece: str) -> int:
    """Characters of `piece` before the token that brought it: of tokens that end within one."""
    return len(piece) - len(name) if piece.endswith(name) else 0


def _top(position: Logprobs) -> Json:
    """The likeliest tokens, and the one that came."""
    top = dict(zip(map(_name, position.top_bytes), position.top_logprobs, strict=True))
    return {_name(position.token_bytes): position.logprob, **top}


def _by_token_id(position: Logprobs) -> Json:
    """The token that came, and the likeliest ones."""
    found = {str(position.token_id): _ranked(position.token_bytes, position.logprob, position.rank)}
    top = zip(position.top_ids, position.top_bytes, position.top_logprobs, strict=True)
    for rank, (token_id, token, logprob) in enumerate(top, 1):
        found.setdefault(str(token_id), _ranked(token, logprob, rank))
    return found


def _ranked(token: bytes, logprob: float, rank: int) -> Json:
    return {"logprob": logprob, "rank": rank, "decoded_token": _name(token)}
