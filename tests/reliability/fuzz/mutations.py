# pyright: strict
"""Valid bytes made invalid, from a seed. Knows no protocol."""

import json
import random
import struct
from collections.abc import Callable, Sequence

MOST_BYTES = 64 * 1024  # of a mutated frame: floods are another test's matter
_NASTY = (
    b"\xff\xfe\xfd",  # no UTF-8
    b"\xed\xa0\x80",  # half of a surrogate pair
    b"\x00",
    b"\r\n\r\n",
    b"\x80" * 11,  # a number of variable length that never ends
    b"[" * 3000,
    b'{"a":' * 3000,
    b"9" * 400,
    b"-1",
    b"1e999",
    b"NaN",
    b"\\ud800",
    b"%s%n%x",
    b"../../../etc/passwd",
)
_EXTREMES = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_WIDTHS = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Mutator:
    """All it does follows from its source of randomness."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._kinds: tuple[Callable[[bytes], bytes], ...] = (
            self._flipped,
            self._flipped,
            self._cut,
            self._without_a_piece,
            self._repeated,
            self._with_an_extreme_number,
            self._with_something_nasty,
            self._swapped,
            self._noise,
        )

    def mutated(self, frame: bytes, others: Sequence[bytes]) -> bytes:
        """`frame` after one to three mutations, perhaps with the end of one of `others`."""
        for _ in range(self._source.choice((1, 1, 1, 2, 3))):
            frame = self._source.choice(self._kinds)(frame)
        if self._source.random() < 0.1:
            other = self._source.choice(others)
            frame = frame[: self._place(frame)] + other[self._place(other) :]
        return frame[:MOST_BYTES]

    def _place(self, frame: bytes) -> int:
        return self._source.randint(0, len(frame))

    def _piece(self, frame: bytes) -> tuple[int, int]:
        start, end = sorted((self._place(frame), self._place(frame)))
        return start, end

    def _flipped(self, frame: bytes) -> bytes:
        flipped = bytearray(frame)
        for _ in range(self._source.choice((1, 1, 2, 8)) if frame else 0):
            bit = self._source.randrange(len(flipped) * 8)
            flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    def _cut(self, frame: bytes) -> bytes:
        return frame[: self._place(frame)]

    def _without_a_piece(self, frame: bytes) -> bytes:
        start, end = self._piece(frame)
        return frame[:start] + frame[end:]

    def _repeated(self, frame: bytes) -> bytes:
        start, end = self._piece(frame)
        return frame[:end] + frame[start:end] * self._source.choice((1, 2, 50)) + frame[end:]

    def _with_an_extreme_number(self, frame: bytes) -> bytes:
        """Where lengths, counts and kinds are, sooner or later."""
        width = self._source.choice(list(_WIDTHS))
        order = self._source.choice("<>")
        number = self._source.choice(_EXTREMES) % 2 ** (8 * width)
        at = self._place(frame)
        return frame[:at] + struct.pack(order + _WIDTHS[width], number) + frame[at + width :]

    def _with_something_nasty(self, frame: bytes) -> bytes:
        at = self._place(frame)
        return frame[:at] + self._source.choice(_NASTY) + frame[at:]

    def _swapped(self, frame: bytes) -> bytes:
        start, end = self._piece(frame)
        return frame[end:] + frame[start:end] + frame[:start]

    def _noise(self, frame: bytes) -> bytes:
        return self._source.randbytes(self._source.randint(1, 256))


def wild_value(source: random.Random) -> object:
    """What no field of a request expects, as JSON can say it."""
    depth = source.choice((3, 100, 1500))
    nested: object = source.choice((0, "x"))
    for _ in range(min(depth, 400)):
        nested = [nested] if source.random() < 0.5 else {"a": nested}
    wild: list[object] = [
        None, True, -1, 0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -1e-320,
        float("nan"), float("inf"), "", "\0", "\ud800", "9" * 5000, "\U0010ffff" * 300,
        [], {}, [[]], [None] * 70, [-1, 2**40], {"1": 1e999}, {"x": {}}, nested,
        ["a"] * 300, {str(number): 1.0 for number in range(1100)},
    ]  # fmt: skip
    return source.choice(wild)


def wild_body(body: dict[str, object], source: random.Random) -> bytes:
    """JSON of `body` with one to three fields of another kind, range or name."""
    changed = dict(body)
    for _ in range(source.choice((1, 1, 2, 3))):
        name = source.choice(list(changed))
        if source.random() < 0.1:
            changed[name[::-1]] = changed[name]
        else:
            changed[name] = wild_value(source)
    return json.dumps(changed).encode()
