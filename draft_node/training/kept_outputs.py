"""What the target gives for every token of its chats, kept on disk.

A drafter learns from the same chats many times, and reading them is most of what a step of a small
drafter costs. Kept outputs are found by their tokens: rows begin where chats do, and mostly come
again in every epoch. Those of a row that begins inside a request know all of it, as in service.

One array a kind, `NAME.npy`, memory-mapped, a row for every token of the stream. Features are
rounded to bfloat16, final hidden states to float16.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draft_node.training.batches import tokens_of
from draft_node.training.frozen_target import TargetOutputs

HIDDEN, LOG_SUMS = "hidden", "log-sums"
_KINDS = {HIDDEN: np.dtype(np.float16), LOG_SUMS: np.dtype(np.float32)}
_BFLOAT16 = np.dtype(np.uint16)  # its bits, for NumPy has no such numbers


def layer_name(layer: int) -> str:
    """Of the array of a layer's outputs."""
    return f"layer-{layer}"


def array_path(folder: Path, name: str) -> Path:
    """Where the array is."""
    return folder / f"{name}.npy"


def form_of(name: str, num_tokens: int, width: int) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the array, of a target whose hidden states have `width` numbers."""
    shape = (num_tokens,) if name == LOG_SUMS else (num_tokens, width)
    return shape, _KINDS.get(name, _BFLOAT16)


def is_there(folder: Path, name: str, num_tokens: int, width: int) -> bool:
    """Whether the array is, and whole."""
    try:
        array = _mapped(folder, name)
    except (OSError, EOFError, ValueError):  # none, or a file that was cut off
        return False
    return (array.shape, array.dtype) == form_of(name, num_tokens, width)


class KeptOutputs:
    """The arrays in `folder`, of one stream whose rows begin at `starts`."""

    def __init__(
        self, folder: Path, stream: np.ndarray, starts: np.ndarray, layers: Sequence[int]
    ) -> None:
        self._tokens = tokens_of(torch.from_numpy(np.asarray(stream, dtype=np.int64))).numpy()
        self._starts = starts
        self._hidden, self._log_sums = _mapped(folder, HIDDEN), _mapped(folder, LOG_SUMS)
        self._layers = {layer: _mapped(folder, layer_name(layer)) for layer in layers}
        self._places = dict[int, dict[bytes, int]]()  # by the length of a row

    def outputs(self, token_ids: Tensor, layers: Sequence[int]) -> TargetOutputs | None:
        """Of rows [R, T], float32; None unless all of them are there, and their layers."""
        rows = token_ids.cpu().numpy()
        places = [place for row in rows if (place := self._place(row)) is not None]
        if len(places) < len(rows) or not self._layers.keys() >= set(layers):
            return None

        def taken(array: np.ndarray) -> Tensor:
            parts = np.stack([array[place : place + rows.shape[1]] for place in places])
            return torch.from_numpy(parts).to(token_ids.device)

        features = [taken(self._layers[layer]).view(torch.bfloat16).float() for layer in layers]
        return TargetOutputs(
            features=torch.cat(features, dim=-1) if features else None,
            hidden=taken(self._hidden).float(),
            log_sums=taken(self._log_sums),
        )

    def _place(self, row: np.ndarray) -> int | None:
        length = len(row)
        if length not in self._places:  # a training has few of them
            ends = [(start, start + length) for start in self._starts.tolist()]
            self._places[length] = {
                _key(self._tokens[start:end]): start
                for start, end in ends
                if end <= len(self._tokens)
            }
        return self._places[length].get(_key(row))


def _key(row: np.ndarray) -> bytes:
    """Of all its tokens: requests may begin with many that are the same, such as instructions."""
    return hashlib.sha256(row.tobytes()).digest()


def _mapped(folder: Path, name: str) -> np.ndarray:
    return np.load(array_path(folder, name), mmap_mode="r", allow_pickle=False)
