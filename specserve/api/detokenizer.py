# pyright: strict
"""Token ids to text, piece by piece, for byte-level tokenizers. Knows no stop strings.

A byte-level token is a sequence of bytes and may end inside a character, so bytes, not tokens,
are decoded incrementally. Cost per token is one dictionary look-up, however long the text is.
"""

import codecs
from collections.abc import Collection, Sequence

from tokenizers import Tokenizer


def _byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable bytes are themselves, others move past U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + offset): byte for offset, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


class TokenBytes:
    """The bytes every token stands for; special tokens stand for none. Shared by all requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {
            token_id: b"" for token_id, token in added.items() if token.special
        }

    def __getitem__(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            # Filled on first use: a vocabulary has 150k entries, a service meets far fewer.
            found = self._bytes[token_id] = self._look_up(token_id)
        return found

    def shown(self, token_id: int) -> bytes:
        """As `[]`, but of a special token its name."""
        return self[token_id] or (self._tokenizer.id_to_token(token_id) or "").encode()

    def _look_up(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # a padding row of the embedding; the tokenizer's own decode skips it too
        try:
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        except KeyError:
            return token.encode()  # an added token outside the byte alphabet is literal text


class Detokenizer:
    """The text of one sample. Pieces concatenate to the tokenizer's decode of all tokens."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        shows_special: bool = False,
        shown_ids: Collection[int] = (),
    ) -> None:
        """`shows_special`: special tokens are in the text, by their names; else `shown_ids` are."""
        self._token_bytes, self._shows_special, self._shown_ids = (
            token_bytes, shows_special, shown_ids,
        )  # fmt: skip
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters that these tokens complete; an unfinished one is held back."""
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def _bytes_of(self, token_id: int) -> bytes:
        is_shown = self._shows_special or token_id in self._shown_ids
        return self._token_bytes.shown(token_id) if is_shown else self._token_bytes[token_id]

    def flush(self) -> str:
        """What is held back, a replacement character for an unfinished one, at the end."""
        return self._decoder.decode(b"", final=True)
