"""A file that is cut off, or lies about itself, is refused in one line and read no further."""

import struct

import pytest

from specserve.errors import Unsupported
from specserve.models.gguf.container import GgufFile, Strings

STRING = 8


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content.encode())) + content.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def whole(keys: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    content = head + b"".join(keys) + b"".join(tensors)
    return content + bytes(-len(content) % 32) + data


WORDS = key("words", 9, struct.pack("<IQ", STRING, 2) + text("one") + text("zwölf"))
NUMBERS = key("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3))
NAME = key("general.name", STRING, text("a model"))
GOOD = whole([WORDS, NUMBERS, NAME], [tensor()], bytes(16))


@pytest.fixture
def opened(tmp_path):
    def opened(content: bytes) -> GgufFile:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return GgufFile(path)

    return opened


def test_metadata_and_tensors_are_read(opened):
    with opened(GOOD) as file:
        words = file.metadata["words"]
        assert isinstance(words, Strings)
        assert (words.read(), len(words)) == (["one", "zwölf"], 2)
        assert file.metadata["numbers"].read() == [1, -2, 3]
        assert file.metadata["general.name"] == "a model"
        (found,) = file.tensors.values()
        assert (found.shape, found.kind, found.num_bytes) == ((4,), "F32", 16)
        assert file.bytes_of(found).tobytes() == bytes(16)


def test_a_file_that_ends_anywhere_is_refused(opened):
    for end in range(len(GOOD)):
        with pytest.raises(Unsupported, match=r"model\.gguf: "):
            opened(GOOD[:end])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"PK\3\4" + bytes(60), "not a GGUF file"),
        (whole([], [], version=1), "GGUF version 1 is not 2 or 3"),
        (whole([], [], version=3 << 24), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "do not fit into the file"),
        (whole([key("k", STRING, struct.pack("<Q", 1 << 50))], []), "longer than may be"),
        (whole([key("k", 9, struct.pack("<IQ", STRING, 1 << 50))], []), "'k' names .* strings"),
        (whole([key("k", 9, struct.pack("<IQ", 4, 1 << 50))], []), "'k' names .* numbers"),
        (whole([key("k", 9, struct.pack("<IQ", 9, 1))], []), "an array of type 9"),
        (whole([key("k", 77, bytes(8))], []), "'k' has type 77"),
        (whole([NAME, NAME], []), "'general.name' is stored twice"),
        (whole([key("general.alignment", 4, struct.pack("<I", 0))], []), "general.alignment: 0"),
        (whole([], [tensor(), tensor()], bytes(64)), "tensor t is stored twice"),
        (whole([], [tensor(offset=8)], bytes(64)), "no multiple of 32"),
        (whole([], [tensor(offset=1 << 40)], bytes(64)), "ends behind the file"),
        (whole([], [tensor(shape=(1 << 40, 1 << 40))]), "ends behind the file"),
        (whole([], [tensor(shape=(0,))]), "has shape"),
        (whole([], [tensor(shape=(1,) * 5)]), "has 5 dimensions"),
        (whole([], [tensor(kind=99)]), "type 99, which the gguf package does not know"),
        (whole([], [tensor(shape=(33, 2), kind=2)], bytes(99)), "no whole blocks of Q4_0"),
    ],
)
def test_what_lies_is_refused(opened, content, problem):
    with pytest.raises(Unsupported, match=problem) as error:
        opened(content)
    assert "\n" not in str(error.value)


def test_strings_that_end_behind_the_file_are_refused_where_they_are_walked(opened):
    """Nothing behind them would notice."""
    last = struct.pack("<IQ", STRING, 2) + text("abcdefgh") + b"xxxx"
    with pytest.raises(Unsupported, match="'words' ends behind the file"):
        opened(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("words", 9, last))
    lies = struct.pack("<IQ", STRING, 1) + struct.pack("<Q", 1 << 40) + b"x" * 20
    with pytest.raises(Unsupported, match="'words' ends behind the file"):
        opened(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("words", 9, lies))


def test_an_empty_and_a_missing_file_are_refused(opened, tmp_path):
    with pytest.raises(Unsupported, match="not readable"):
        opened(b"")
    with pytest.raises(Unsupported, match="not readable"):
        GgufFile(tmp_path / "none.gguf")
