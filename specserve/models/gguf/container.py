# pyright: strict
"""The container: typed metadata by key, and where each tensor's bytes lie. Memory-mapped.

Everything is checked against the file's size before it is believed, and nothing is executed. Knows
no models and no torch. The `gguf` package has a reader, too; it makes an object of every token and
merge of the vocabulary, which takes seconds in every process of a launch, so only what it knows of
quantised formats is used here: their sizes, and later how they are dequantised.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from specserve.errors import Unsupported

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMS = 4
_MOST_KEY_BYTES = 65_535  # by the specification
_STRING, _ARRAY, _BOOL = 8, 9, 7
_LENGTH = struct.Struct("<Q")
_SCALARS = {  # numbers of value types -> struct codes, all little-endian
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: rows of quantised blocks or of plain numbers."""

    name: str
    shape: tuple[int, ...]  # as torch counts dimensions: the last one is contiguous
    kind: str  # F32, F16, BF16, Q4_1, ..., as the gguf package names them
    offset: int  # bytes from the beginning of the file
    num_bytes: int


class Strings:
    """An array of strings, read from the file when it is asked for; valid while that is open."""

    def __init__(self, content: mmap.mmap, start: int, count: int) -> None:
        self._content, self._start, self._count = content, start, count

    def __len__(self) -> int:
        return self._count

    def read(self) -> list[str]:
        """All of them."""
        found: list[str] = []
        content, position, read_length = self._content, self._start, _LENGTH.unpack_from
        for _ in range(self._count):
            start = position + 8
            position = start + read_length(content, position)[0]
            found.append(content[start:position].decode("utf-8", errors="replace"))
        return found


class Numbers:
    """An array of numbers or truth values, as `Strings`."""

    def __init__(self, content: mmap.mmap, start: int, count: int, code: str) -> None:
        self._content, self._start, self._count, self._code = content, start, count, code

    def __len__(self) -> int:
        return self._count

    def read(self) -> list[Any]:
        """All of them."""
        return list(struct.unpack_from(f"<{self._count}{self._code}", self._content, self._start))


class GgufFile:
    """An open file; a context manager. Raises `Unsupported` for one that is malformed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise Unsupported(f"{path}: not readable: {error}") from error
        try:
            reader = _Reader(self._map, path)
            num_tensors, num_keys = reader.header()
            self.metadata: Mapping[str, Any] = reader.metadata(num_keys)
            self.tensors = {tensor.name: tensor for tensor in self._tensors(reader, num_tensors)}
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The mapping goes with the last array made from it, if there are any left."""
        try:
            self._map.close()
        except BufferError:
            pass  # it is unmapped when they are collected

    def bytes_of(self, tensor: StoredTensor) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        """A tensor's bytes, without a copy: [rows, bytes of a row]."""
        num_rows = 1
        for size in tensor.shape[:-1]:
            num_rows *= size
        flat = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return flat.reshape(num_rows, -1)

    def _tensors(self, reader: "_Reader", count: int) -> list[StoredTensor]:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            reader.fail(f"general.alignment: {alignment!r} is not a multiple of 8")
        described = [reader.tensor() for _ in range(count)]
        start = -(-reader.position // alignment) * alignment
        found: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in described:
            tensor = _placed(reader, name, shape, kind, start + offset)
            if offset % alignment:
                reader.fail(f"tensor {name} lies at {offset}, no multiple of {alignment}")
            if tensor.offset + tensor.num_bytes > len(self._map):
                reader.fail(f"tensor {name} ends behind the file; is the download complete?")
            if name in found:
                reader.fail(f"tensor {name} is stored twice")
            found[name] = tensor
        return list(found.values())


def _placed(
    reader: "_Reader", name: str, shape: tuple[int, ...], kind: int, offset: int
) -> StoredTensor:
    import gguf  # imported here: it takes a tenth of a second, and most models are folders

    try:
        known = gguf.GGMLQuantizationType(kind)
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        reader.fail(f"tensor {name} has type {kind}, which the gguf package does not know")
    if shape[-1] % block_len:
        reader.fail(f"tensor {name}: rows of {shape[-1]} are no whole blocks of {known.name}")
    num_elements = 1
    for size in shape:
        num_elements *= size
    return StoredTensor(name, shape, known.name, offset, num_elements // block_len * block_bytes)


class _Reader:
    """Walks the header. Every length is compared with what is left of the file first."""

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self.position = 0
        self._content, self._path, self._size = content, path, len(content)

    def fail(self, problem: str) -> NoReturn:
        raise Unsupported(f"{self._path}: {problem}")

    def header(self) -> tuple[int, int]:
        """Numbers of tensors and of metadata keys."""
        if self._take(4) != MAGIC:
            self.fail("not a GGUF file")
        version = self._number("I")
        if version not in _VERSIONS:
            known = " or ".join(map(str, _VERSIONS))
            # A big-endian file shows its version in the upper bytes.
            hint = " (big-endian files are not read)" if version >= 1 << 16 else ""
            self.fail(f"GGUF version {version} is not {known}{hint}")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        # Whatever is counted takes a dozen bytes at least.
        if 12 * (num_tensors + num_keys) > self._size:
            self.fail(f"{num_tensors} tensors and {num_keys} keys do not fit into the file")
        return num_tensors, num_keys

    def metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string(_MOST_KEY_BYTES)
            if key in found:
                self.fail(f"metadata {key!r} is stored twice")
            found[key] = self._value(self._number("I"), key)
        return found

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, number of the type, offset from the first tensor."""
        name = self._string(_MOST_KEY_BYTES)
        num_dims = self._number("I")
        if not 1 <= num_dims <= _MOST_DIMS:
            self.fail(f"tensor {name} has {num_dims} dimensions, not 1 to {_MOST_DIMS}")
        shape = tuple(self._number("Q") for _ in range(num_dims))
        if any(not 1 <= size <= 1 << 40 for size in shape):
            self.fail(f"tensor {name} has shape {list(reversed(shape))}")
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _value(self, kind: int, key: str) -> Any:  # noqa: ANN401 - typed by the file
        if kind == _STRING:
            return self._string(self._size)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            self.fail(f"metadata {key!r} has type {kind}, which is not known")
        return self._number(_SCALARS[kind])

    def _array(self, key: str) -> "Numbers | Strings":
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return self._strings(count, key)
        if kind not in _SCALARS:
            self.fail(f"metadata {key!r} is an array of type {kind}, which is not read")
        code = _SCALARS[kind]
        num_bytes = struct.calcsize(f"<{code}") * count
        if num_bytes > self._size - self.position:
            self.fail(f"metadata {key!r} names {count} numbers, more than the file holds")
        numbers = Numbers(self._content, self.position, count, code)
        self.position += num_bytes
        return numbers

    def _strings(self, count: int, key: str) -> "Strings":
        """Only walked: vocabularies are long, and most readers of a file want other things."""
        if 8 * count > self._size - self.position:
            self.fail(f"metadata {key!r} names {count} strings, more than the file holds")
        strings = Strings(self._content, self.position, count)
        position, read_length, last = self.position, _LENGTH.unpack_from, self._size - 8
        for _ in range(count):
            if position > last:
                break
            position += 8 + read_length(self._content, position)[0]
        else:  # all of them began in time
            if position <= self._size:
                self.position = position
                return strings
        self.fail(f"metadata {key!r} ends behind the file; is the download complete?")

    def _number(self, code: str) -> Any:  # noqa: ANN401 - int, float or bool, by `code`
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

    def _string(self, most_bytes: int) -> str:
        length = cast("int", self._number("Q"))
        if length > most_bytes:
            self.fail(f"a string of {length} bytes at {self.position} is longer than may be")
        return self._take(length).decode("utf-8", errors="replace")

    def _take(self, length: int) -> bytes:
        end = self.position + length
        if end > self._size:
            self.fail("ends inside its header; is the download complete?")
        taken = self._content[self.position : end]
        self.position = end
        return taken
