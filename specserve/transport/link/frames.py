# pyright: strict
"""What reports and pushes have in common as bytes of fixed layout: limits, pieces and checks.

A frame knows neither how it travels nor what a node does with it. Little-endian throughout.
Decoding copies nothing: arrays are views of the frame, which its receiver has taken out of shared
memory before (`ring.ByteRing.read` makes the one copy), so nobody can change them afterwards.

What only a device reads comes last in every frame, entries of four bytes each. Where it is in a
device's memory it travels beside the frame, in the same order, as the *device part*.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from specserve.transport.link.envelope import Part, Unsound
from specserve.transport.link.messages import DeviceArray, Floats, Ids, Numbers, Tokens

MAX_BLOCKS = 256  # of a push
MAX_ROUND = 2**20 - 1  # what the noise has room for
MAX_FRAME_BYTES = 4 * 1024 * 1024  # of a report; every carrier has room for two of them
TOKEN = np.dtype("<i4")
FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The largest values that a frame of this link may hold; both ends must agree on them."""

    vocab_size: int
    gamma: int  # tokens of a block
    feature_size: int  # H; 0: the drafter reads token ids alone
    max_positions: int  # of a stream: the model's context
    max_rows: int  # of a report
    max_kept: int  # M, entries of a distribution
    max_blocks: int = MAX_BLOCKS


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame to be written."""

    parts: list[Part]
    device_part: list[DeviceArray] = field(default_factory=list[DeviceArray])

    @property
    def num_bytes(self) -> int:
        """Wherever they are: as many as if all were on the host."""
        return sum(map(len, self.parts)) + sum(array.nbytes for array in self.device_part)


class Entries(Protocol):
    """What a device will read, handed out piece by piece; a wrong length is `Unsound`."""

    def token_ids(self, count: int, limits: LinkLimits) -> Ids:
        """Within the vocabulary: others are `Unsound`, or made so where nobody can look."""
        ...

    def ids(self, count: int) -> Ids:
        """int32, of any value."""
        ...

    def numbers(self, count: int) -> Numbers:
        """float32, of any value."""
        ...

    def finish(self) -> None:
        """Nothing may be left."""
        ...


class DevicePart(Entries, Protocol):
    """One that has arrived, in a device's memory."""

    @property
    def num_bytes(self) -> int: ...


class HostEntries:
    """Of a frame that has them in itself, behind all else."""

    def __init__(self, cursor: "Cursor") -> None:
        self._cursor = cursor

    def token_ids(self, count: int, limits: LinkLimits) -> Ids:
        token_ids = self._cursor.array(TOKEN, count)
        check_tokens(token_ids, limits)
        return token_ids

    def ids(self, count: int) -> Ids:
        return self._cursor.array(TOKEN, count)

    def numbers(self, count: int) -> Numbers:
        return self._cursor.array(FLOAT, count)

    def finish(self) -> None:
        """The cursor's end is the frame's."""


def split(arrays: Iterable[tuple[Ids | Numbers, "np.dtype[Any]"]]) -> Encoded:
    """What only a device reads: as bytes what is on the host, as it is what is on the device."""
    encoded = Encoded([])
    for array, dtype in arrays:
        if isinstance(array, np.ndarray):
            encoded.parts.append(flat(cast("NDArray[Any]", array), dtype))
        else:
            encoded.device_part.append(array)
    return encoded


def require(sound: bool, reason: str) -> None:
    if not sound:
        raise Unsound(reason)


def flat(array: NDArray[Any], dtype: "np.dtype[Any]") -> Part:
    """The array's own bytes, or those of a converted copy."""
    return np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data


class Cursor:
    """Hands out a payload piece by piece; a piece beyond the end is `Unsound`."""

    def __init__(self, payload: memoryview, start: int) -> None:
        self._payload = payload
        self._at = start

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes, not copied."""
        start, self._at = self._at, self._at + num_bytes
        require(self._at <= len(self._payload), "payload shorter than its counts")
        return self._payload[start : self._at]

    def array(self, dtype: "np.dtype[Any]", count: int) -> NDArray[Any]:
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def finish(self) -> None:
        require(self._at == len(self._payload), "payload longer than its counts")


def check_tokens(token_ids: Tokens, limits: LinkLimits) -> None:
    if token_ids.size:  # unsigned, a negative id is a huge one: one pass for both bounds
        require(token_ids.view("<u4").max() < limits.vocab_size, "token id out of range")


def check_confidences(confidences: Floats) -> None:
    if confidences.size:  # a NaN is the minimum and the maximum, and compares false
        sound = confidences.min() >= 0 and confidences.max() <= 1
        require(bool(sound), "confidence out of range")
