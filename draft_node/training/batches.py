"""Token streams and the batches cut from them.

A stream is one domain's documents, each followed by the document separator, as uint16, or int32
where the vocabulary needs it. Every epoch visits all windows of a stream once, in an order that
depends on the seed and the epoch only, so a cursor per domain is the whole state. Where it is told
at which tokens its texts begin, windows begin there instead, and end in the texts behind.

A token that is read and never learned, such as a question, stands as its complement (~id, which is
negative), in streams of int32 and in the labels that are made of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from draft_node.training.progress import each

WINDOW = 256
_CHUNK = 512  # documents encoded at a time


def encode_stream(tokenizer: Tokenizer, texts: Iterable[str], separator: str) -> np.ndarray:
    """All texts as one array, the separator token after each."""
    documents = list(texts)
    end_id = tokenizer.token_to_id(separator)
    if end_id is None:
        raise ValueError(f"the tokenizer has no token {separator}")
    kind = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.int32
    parts = []
    for start in each("encoding text", range(0, len(documents), _CHUNK)):
        # encode_special_tokens: text that spells a special token must not become one.
        tokenizer.encode_special_tokens = True
        for encoding in tokenizer.encode_batch_fast(documents[start : start + _CHUNK]):
            parts.append(np.asarray([*encoding.ids, end_id], dtype=kind))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=kind)


def save_stream(path: Path, stream: np.ndarray) -> None:
    """Write a stream so that it can be memory-mapped."""
    np.save(path, stream)


class BatchSource:
    """Batches whose rows take turns between the domains.

    `turns` is the order of domains, repeated for ever; without it every domain has one turn.
    """

    def __init__(
        self,
        streams: dict[str, np.ndarray],
        seed: int,
        window: int = WINDOW,
        turns: Sequence[str] = (),
        starts: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """`starts`: where the texts of a domain begin, for those that have windows there."""
        self.streams, self.seed, self.window = streams, seed, window
        self._starts = dict(starts or {})
        self.turns = list(turns or streams)
        self.cursors = dict.fromkeys(streams, 0)
        self._orders: dict[tuple[str, int], np.ndarray] = {}

    def resume_at(self, cursors: Mapping[str, int], num_tokens: int) -> None:
        """Go on where a run was that had read num_tokens; raises ValueError if it cannot be."""
        if cursors.keys() != self.cursors.keys():
            raise ValueError(f"its streams are {sorted(cursors)}, these {sorted(self.cursors)}")
        if min(cursors.values()) < 0 or sum(cursors.values()) > num_tokens:
            raise ValueError(f"no run of {num_tokens} tokens is at the rows {dict(cursors)}")
        self.cursors = dict(cursors)

    @property
    def longest(self) -> int:
        """Tokens of the longest row that every stream holds, its last label besides."""
        return min(len(stream) for stream in self.streams.values()) - 1

    def epochs(self, domain: str) -> float:
        """How often the stream has been seen."""
        return self.cursors[domain] / self._num_windows(domain)

    def _num_windows(self, domain: str) -> int:
        if domain in self._starts:
            return len(self._starts[domain])
        return max(1, len(self.streams[domain]) // self.window - 1)

    def _start(self, domain: str) -> int:
        """First token of the next window; each epoch shifts the window grid."""
        count = self._num_windows(domain)
        epoch, index = divmod(self.cursors[domain], count)
        self.cursors[domain] += 1
        key = (domain, epoch)
        if key not in self._orders:
            rng = np.random.default_rng([self.seed, epoch, *domain.encode()])
            self._orders = {k: v for k, v in self._orders.items() if k[0] != domain}
            if domain in self._starts:
                self._orders[key] = rng.permutation(self._starts[domain])
            else:
                shift = int(rng.integers(self.window))
                self._orders[key] = rng.permutation(count) * self.window + shift
        return int(self._orders[key][index])

    def next(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels, [rows, length] int64 each; longer rows start at window starts too.

        A label that is not learned is the complement of its token.
        """
        taken = []
        for _ in range(rows):
            domain = self.turns[sum(self.cursors.values()) % len(self.turns)]
            stream = self.streams[domain]
            start = min(self._start(domain), len(stream) - length - 1)
            taken.append(np.asarray(stream[start : start + length + 1], dtype=np.int64))
        block = torch.from_numpy(np.stack(taken))
        return tokens_of(block[:, :-1]), block[:, 1:].contiguous()


def tokens_of(stream: Tensor) -> Tensor:
    """The tokens of a stream or of labels, whether they are learned or not."""
    return torch.where(stream < 0, ~stream, stream)
