"""Held-out split by file, and removal of held-out text from the training text.

A file is held out by the hash of its name, so the split is the same on every machine. Text that
training files share with held-out files is then cut from the training side.
"""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np

from draft_node.training.cleaning import words
from draft_node.training.progress import each

SHINGLE_WORDS = 50
DROP_SHARE = 0.3  # a training file with more held-out text than this goes altogether
_WORD = np.uint64


def is_held_out(source: str, share: float) -> bool:
    """Decide by file name only; a file and the docstrings taken from it get the same answer."""
    bucket = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=4).digest(), "big")
    return bucket < share * 2**32


def shingle_hashes(text: str, cache: dict[str, int]) -> np.ndarray:
    """Hashes of all windows of SHINGLE_WORDS words, shape [max(0, W - SHINGLE_WORDS + 1)]."""
    ids = []
    for match in words(text):
        word = match.group()
        value = cache.get(word)
        if value is None:
            # Two CRCs: one alone (32 bits) would collide across millions of shingles.
            raw = word.encode("utf-8", "surrogatepass")
            value = cache[word] = zlib.crc32(raw) << 32 | zlib.crc32(raw, 0x9E3779B9)
        ids.append(value)
    count = len(ids) - SHINGLE_WORDS + 1
    if count <= 0:
        return np.zeros(0, dtype=_WORD)
    array = np.asarray(ids, dtype=_WORD)
    hashes = np.zeros(count, dtype=_WORD)
    for offset in range(SHINGLE_WORDS):  # polynomial hash modulo 2**64
        hashes *= _WORD(0x9E3779B97F4A7C15)
        hashes += array[offset : offset + count]
    return hashes


def remove_overlap(
    training: Sequence[str], held_out: Sequence[str], cache: dict[str, int] | None = None
) -> list[str]:
    """Training texts without any window of SHINGLE_WORDS words that held-out text contains.

    A text that is mostly held-out text becomes "".
    """
    cache = {} if cache is None else cache
    parts = [shingle_hashes(text, cache) for text in held_out]
    forbidden = np.unique(np.concatenate([np.zeros(0, dtype=_WORD), *parts]))
    texts = each("comparing with what is held out, texts", training)
    return [_cut(text, shingle_hashes(text, cache), forbidden) for text in texts]


def _cut(text: str, hashes: np.ndarray, forbidden: np.ndarray) -> str:
    """Remove the characters covered by forbidden shingles."""
    if not hashes.size or not forbidden.size:
        return text
    places = np.minimum(np.searchsorted(forbidden, hashes), forbidden.size - 1)
    hits = np.flatnonzero(forbidden[places] == hashes)
    if not hits.size:
        return text
    spans = [match.span() for match in words(text)]
    covered = np.zeros(len(spans), dtype=bool)
    for hit in hits:
        covered[hit : hit + SHINGLE_WORDS] = True
    if covered.mean() > DROP_SHARE:
        return ""
    pieces, position = [], 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], covered.astype(np.int8), [0]])))
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        pieces.append(text[position : spans[first][0]])
        position = spans[last - 1][1]
    return "\n".join([*pieces, text[position:]])
