# pyright: strict
"""Chats on disk: the token ids of every request and of its answer, in parts that never change.

A part is `chats-FIRST-END.npz`, of the chats with the numbers FIRST to END - 1. One chat may be
several requests, one for each of its answers, and a number whose chat came to nothing has none.
A part is written whole or not at all, so that a run that was stopped goes on behind the last.
"""

import itertools
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from draft_node.training.batches import WINDOW
from specserve.errors import InvalidField

MANIFEST = "data.json"  # beside the parts: who wrote them, and how
HELD_OUT_EVERY = 20  # one chat in so many is never trained on
LEAST_HELD_OUT = 256  # tokens, by which a training is judged

_FIELD = "--data"
_SHORT = 32  # tokens at a request's end that no window begins for
_NAME = re.compile(r"chats-(\d{6,})-(\d{6,})\.npz")
_ARRAYS = ("numbers", "prompt_lens", "answer_lens", "temperatures", "tokens")


@dataclass(frozen=True)
class Exchange:
    """One request as it was served: what was asked, in the chat template, and the answer."""

    number: int  # of the chat
    temperature: float
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]  # its end token included, where it ended by one

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


class ChatStore:
    """The parts in one folder. Raises InvalidField if one cannot be read, or one is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = _parts_in(folder)

    @property
    def next_number(self) -> int:
        """Of the first chat that is not there yet."""
        return self._parts[-1][1] if self._parts else 0

    def exchanges(self) -> Iterator[Exchange]:
        """All of them, in the order of their chats."""
        for _, _, path in self._parts:
            yield from _read(path)

    def add(self, end: int, exchanges: Sequence[Exchange], vocab_size: int) -> None:
        """Keep the chats `next_number` to `end` - 1, the only numbers in `exchanges`."""
        first = self.next_number
        path = self.folder / f"chats-{first:06}-{end:06}.npz"
        temporary = path.with_suffix(".tmp")
        kind = np.uint16 if vocab_size <= 1 << 16 else np.int32
        ids = [token for e in exchanges for token in (*e.prompt_ids, *e.answer_ids)]
        with temporary.open("wb") as file:
            np.savez_compressed(
                file,
                numbers=np.asarray([e.number for e in exchanges], dtype=np.int32),
                prompt_lens=np.asarray([len(e.prompt_ids) for e in exchanges], dtype=np.int32),
                answer_lens=np.asarray([len(e.answer_ids) for e in exchanges], dtype=np.int32),
                temperatures=np.asarray([e.temperature for e in exchanges], dtype=np.float32),
                tokens=np.asarray(ids, dtype=kind),
            )
        os.replace(temporary, path)
        self._parts.append((first, end, path))


def is_held_out(exchange: Exchange) -> bool:
    """Whether the chat it belongs to is never trained on.

    By a hash: kinds of chats take turns by their numbers, and every kind is held out alike.
    """
    return zlib.crc32(exchange.number.to_bytes(8, "little")) % HELD_OUT_EVERY == 0


def too_few_held_out(store: ChatStore) -> str | None:
    """What to tell people who cannot train on these chats, because too little is held out."""
    exchanges = list(store.exchanges())
    found = sum(exchange.num_tokens for exchange in exchanges if is_held_out(exchange))
    if found >= LEAST_HELD_OUT:
        return None
    numbers = itertools.count(store.next_number)
    number = next(n for n in numbers if is_held_out(Exchange(n, 0.0, (), ())))
    of_one = sum(exchange.num_tokens for exchange in exchanges) / max(1, store.next_number)
    enough = math.ceil((number + 1) * of_one / 1000) * 1000
    return (
        f"{found} tokens held out (one chat in {HELD_OUT_EVERY}) are too few to train, "
        f"{LEAST_HELD_OUT} needed; specserve train data with --tokens {enough} should do"
    )


def stream_of(exchanges: Iterable[Exchange]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [N] int32, answers as they are and all else as complements; and where windows begin.

    They begin where requests do, and every `WINDOW` tokens inside long ones. A complement (~id,
    which is negative) marks a token that is read and never learned.
    """
    parts: list[np.ndarray] = []
    for exchange in exchanges:
        parts.append(~np.asarray(exchange.prompt_ids, dtype=np.int32))
        parts.append(np.asarray(exchange.answer_ids, dtype=np.int32))
    starts, place = list[int](), 0
    for prompt, answer in zip(parts[::2], parts[1::2], strict=True):
        end = place + len(prompt) + len(answer)
        starts += range(place, max(place + 1, end - _SHORT), WINDOW)
        place = end
    return np.concatenate([np.zeros(0, np.int32), *parts]), np.asarray(starts, dtype=np.int64)


def chats_in(folder: Path) -> ChatStore:
    """Those that somebody wrote. Raises InvalidField where there are none."""
    if not folder.is_dir():
        raise InvalidField(_FIELD, f"{folder} is no folder; specserve train data writes one")
    store = ChatStore(folder)
    if not store.next_number:
        raise InvalidField(_FIELD, f"{folder} has no chats; specserve train data writes them")
    return store


def _parts_in(folder: Path) -> list[tuple[int, int, Path]]:
    found = [(match, path) for path in folder.glob("chats-*.npz") if (match := _name(path))]
    parts = sorted((int(match[1]), int(match[2]), path) for match, path in found)
    expected = 0
    for first, end, path in parts:
        if first != expected:
            raise InvalidField(_FIELD, f"{folder}: the chats {expected} to {first - 1} are missing")
        if end <= first:
            raise InvalidField(_FIELD, f"{path}: ends before it begins")
        expected = end
    return parts


def _name(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


def _read(path: Path) -> Iterator[Exchange]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: cast("np.ndarray", file[name]) for name in _ARRAYS}
    except OSError as error:
        raise InvalidField(_FIELD, f"{path}: {error.strerror or error}") from error
    except (EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        # Not in NumPy's words, which for any other file tell how to trust it.
        problem = "holds no chats: it is not what specserve train data writes, or was cut off"
        raise InvalidField(_FIELD, f"{path}: {problem}") from error
    _refuse_other_kinds(path, arrays)
    tokens = arrays.pop("tokens")
    rows = list(zip(*(arrays[name].tolist() for name in _ARRAYS[:-1]), strict=True))
    lengths = [prompt_len + answer_len for _, prompt_len, answer_len, _ in rows]
    if min((*arrays["prompt_lens"], *arrays["answer_lens"], 0)) < 0 or sum(lengths) != len(tokens):
        raise InvalidField(_FIELD, f"{path}: its lengths do not add up to its {len(tokens)} tokens")
    place = 0
    for number, prompt_len, answer_len, temperature in rows:
        middle, end = place + prompt_len, place + prompt_len + answer_len
        yield Exchange(
            number, temperature, tokens[place:middle].tolist(), tokens[middle:end].tolist()
        )
        place = end


def _refuse_other_kinds(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Raise InvalidField unless all are rows of numbers, as many of each kind as requests."""
    for name, array in arrays.items():
        kinds = "f" if name == "temperatures" else "iu"
        if array.ndim != 1 or array.dtype.kind not in kinds:
            found = f"{array.dtype} of {array.ndim} dimensions"
            raise InvalidField(_FIELD, f"{path}: {name} are {found}, not a row of numbers")
    if len({len(arrays[name]) for name in _ARRAYS[:-1]}) > 1:
        raise InvalidField(_FIELD, f"{path}: its arrays are not of one number of requests")
